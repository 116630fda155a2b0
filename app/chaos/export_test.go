package chaos

// OnFound sets what is called between finding the leader and setting the fault.
func (f *Fleet) OnFound(do func(Leader)) { f.found = do }

// Still, Alive, RunningIn and Allowed are what tests look with.
var (
	Still     = still
	Alive     = alive
	RunningIn = runningIn
	Allowed   = allowed
)
