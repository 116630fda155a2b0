package chaos

// OnFound sets what is called between finding the leader and setting the fault.
func (f *Fleet) OnFound(do func(Target)) { f.found = do }

// LoseGuard sets a guard on a process and leaves it as one that died would.
func LoseGuard(pid int, armed bool) (wait func() error, err error) {
	g, err := newGuard(pid, armed)
	if err != nil {
		return nil, err
	}
	return g.cmd.Wait, g.stdin.Close()
}

// Still, Alive, RunningIn and Allowed are what tests look with.
var (
	Still     = isStopped
	Alive     = alive
	RunningIn = runningIn
	Allowed   = allowed
)
