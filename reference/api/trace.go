package api

import (
	"fmt"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// The kinds of a TraceLine.
const (
	TraceAttempt = "attempt" // a write is about to be sent
	TraceDone    = "done"    // it has ended; At is that of its attempt
	TraceSealed  = "sealed"  // the ledger was sealed, from At to End
	TraceBegan   = "began"   // a term of this node began
	TraceEnded   = "ended"   // it ended
	TraceMissed  = "missed"  // a keep-alive failed
	TraceLed     = "led"     // somebody was seen to lead
	TraceVacant  = "vacant"  // nobody was
	TraceBlind   = "unknown" // who leads cannot be seen
	TraceCall    = "call"    // the engine is about to be called
	TraceOpened  = "opened"  // the first line of a process
)

// TraceWhole is the name of a file beside a node's trace that stands for as long as
// every line of that process was written: it is removed when one is lost, which needs no
// room on a disk that is full.
func TraceWhole(node string, pid int) string { return fmt.Sprintf("%s-%d.whole", node, pid) }

// TraceLine is one line of a node's trace (-trace): what it did and saw, on the host's
// clock. Each line is handed to the operating system before the node goes on, so that
// a node which is killed has told everything it did.
type TraceLine struct {
	Kind  string        `json:"kind"`
	PID   int           `json:"pid"`
	At    clock.Instant `json:"at"`
	Token fence.Token   `json:"token,omitempty"`
	// End is when an attempt ended, or a seal.
	End clock.Instant `json:"end,omitempty"`
	// N counts the lines of one process from 1, so that a missing line is detected.
	N uint64 `json:"n"`
	// Writes are what an attempt asks the ledger to write.
	Writes []TraceWrite `json:"writes,omitempty"`
	// What is the outcome of an attempt (ok, refused, unknown, failed), the cause of an
	// end, who was seen to lead, why a keep-alive failed, or which call it is.
	What string `json:"what,omitempty"`
}

// TraceWrite is a write whose effect the ledger keeps: a range of a sequence, a tick, a
// firing or a checkpoint.
type TraceWrite struct {
	What string `json:"what"`
	Name string `json:"name,omitempty"`
	// First and Last are the range of a sequence.
	First uint64 `json:"first,omitempty"`
	Last  uint64 `json:"last,omitempty"`
	// InstantMS is the instant of a firing.
	InstantMS int64 `json:"instant_ms,omitempty"`
}

// The calls of a lease engine that are told apart.
const (
	CallOpen      = "open"
	CallKeepAlive = "keep-alive"
	CallClose     = "close"
	CallAcquire   = "acquire"
	CallRelease   = "release"
	CallRead      = "read"
	CallLine      = "line"
	CallWatch     = "watch"
)
