package chaos

import "github.com/tenurehq/tenure/lab/chaos/inspect"

// OnFound sets what is called between finding the leader and setting the fault.
func (f *Fleet) OnFound(do func(inspect.Target)) { f.found = do }
