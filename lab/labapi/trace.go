package labapi

import (
	"fmt"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
)

// TraceOpened is the kind of the first line of a process. The other kinds are those of
// package reference/api.
const TraceOpened = "opened"

// TraceWhole is the name of a file beside a node's trace. It exists for as long as every
// line of that process was written. It is removed when a line is lost, which works on a full
// disk too.
func TraceWhole(node string, pid int) string { return fmt.Sprintf("%s-%d.whole", node, pid) }

// TraceLine is one line of a node's trace (--trace): what it did and saw, on the host's
// clock. The operating system has each line before the node continues, so a node that is
// killed loses none.
type TraceLine struct {
	Kind  string        `json:"kind"`
	PID   int           `json:"pid"`
	At    clock.Instant `json:"at"`
	Token fence.Token   `json:"token,omitempty"`
	// End is when a write or a seal ended.
	End clock.Instant `json:"end,omitempty"`
	// N counts the lines of one process from 1, so that a missing line is detected.
	N uint64 `json:"n"`
	// Writes are what an attempt asks the ledger to write. The name of a tick is its key.
	Writes []history.Write `json:"writes,omitempty"`
	// What is the outcome of an attempt (ok, refused, unknown, failed), the cause of an
	// end, who leads, why a keep-alive failed, or which call it is.
	What string `json:"what,omitempty"`
}
