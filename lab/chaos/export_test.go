package chaos

// OnFound sets what is called between finding the leader and setting the fault.
func (f *Fleet) OnFound(do func(Target)) { f.found = do }

// LoseGuard starts a guard for a process and leaves it, like a process that died.
func LoseGuard(pid int, armed bool) (wait func() error, err error) {
	g, err := newGuard(pid, armed)
	if err != nil {
		return nil, err
	}
	return g.cmd.Wait, g.stdin.Close()
}

// Still, Alive, RunningIn and Allowed are for tests.
var (
	Still     = isStopped
	Alive     = alive
	RunningIn = runningIn
	Allowed   = allowed
)
