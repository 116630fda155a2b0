package check

import (
	"cmp"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// Event is one line of a history: a Run, Process, Call, Belief, Seal, Attempt, Effect,
// Grant or Fault.
type Event interface {
	kind() string
	// when orders events of one kind: when it was over.
	when() clock.Instant
}

// Run says what was run. A history has one.
type Run struct {
	Experiment string        `json:"experiment"`
	Seed       uint64        `json:"seed"`
	Engine     string        `json:"engine"`
	Group      string        `json:"group"`
	At         clock.Instant `json:"at"`
	Nodes      int           `json:"nodes"`
	Unfenced   bool          `json:"unfenced,omitempty"`
	// Command repeats the run.
	Command string `json:"command,omitempty"`

	// The timing of the lease. For Raft the TTL is its lease timeout.
	TTLMS         int64   `json:"ttl_ms"`
	BeatMS        int64   `json:"beat_ms"`
	CallTimeoutMS int64   `json:"call_timeout_ms"`
	BackoffMaxMS  int64   `json:"backoff_max_ms"`
	Drift         float64 `json:"drift"`
	// EngineDelayMS is what the engine adds: how late it sees that a session expired,
	// and for how long it acknowledges after it has lost its quorum.
	EngineDelayMS int64 `json:"engine_delay_ms,omitempty"`
	// WakeMS is how long after a pause a process may take to see what it missed.
	// Default 150.
	WakeMS int64 `json:"wake_ms,omitempty"`
	// LateMS is how long a process that runs may take from what it looked at to what it
	// writes down of it. Default 20.
	LateMS int64 `json:"late_ms,omitempty"`
	// SeenMS is how late an observer may see a grant. Default 500.
	SeenMS int64 `json:"seen_ms,omitempty"`

	// Jobs are what must have fired.
	Jobs []Job `json:"jobs,omitempty"`
	// TickMS is the time between two instants of ticks; 0: it is not known.
	TickMS int64 `json:"tick_ms,omitempty"`
	// Checks are the names of the checks that this run is for. Default all: those that
	// find nothing to look at are then unknown. What the code of the experiment requires
	// (Options.Expect) takes precedence.
	Checks []string `json:"checks,omitempty"`
}

// Job is a job all of whose instants must fire, whoever led and whether anybody did (its
// misfires are all made up for): FirstMS, and every EveryMS after it until LastMS at
// least, by the ledger's clock. EveryMS 0: FirstMS alone.
type Job struct {
	Key     string `json:"key"`
	FirstMS int64  `json:"first_ms"`
	EveryMS int64  `json:"every_ms,omitempty"`
	LastMS  int64  `json:"last_ms,omitempty"`
}

// Process is the start of a process of a node.
type Process struct {
	Node string        `json:"node"`
	PID  int           `json:"pid"`
	At   clock.Instant `json:"at"`
}

// Call is a client's call. Without Error it was answered: the numbers First to Last.
type Call struct {
	// What was called; empty is a call for numbers.
	What   string        `json:"what,omitempty"`
	Client string        `json:"client,omitempty"`
	Start  clock.Instant `json:"start"`
	End    clock.Instant `json:"end"`
	Node   string        `json:"node,omitempty"`
	Token  fence.Token   `json:"token,omitempty"`
	First  uint64        `json:"first,omitempty"`
	Last   uint64        `json:"last,omitempty"`
	Error  string        `json:"error,omitempty"`
	// Unknown: it may have been done although it failed.
	Unknown bool `json:"unknown,omitempty"`
}

// The states of a belief.
const (
	Began   = "began"   // the term began
	Ended   = "ended"   // the term ended, with a cause
	Refused = "refused" // Term.Check said no
	Missed  = "missed"  // a keep-alive failed; it names no term
)

// Belief is what a node says of its term, when it happened to it.
type Belief struct {
	Node  string        `json:"node"`
	Token fence.Token   `json:"token"`
	State string        `json:"state"`
	At    clock.Instant `json:"at"`
	// Cause of an end: expired, lost, resigned, transferred, unhealthy.
	Cause string `json:"cause,omitempty"`
}

// The outcomes of an attempt. One that is not told is empty.
const (
	OutcomeOK      = "ok"
	OutcomeRefused = "refused"
	OutcomeUnknown = "unknown"
	OutcomeFailed  = "failed" // surely not made
)

// Attempt is a leader's attempt to write, recorded before it is sent.
type Attempt struct {
	Node    string        `json:"node"`
	Token   fence.Token   `json:"token"`
	At      clock.Instant `json:"at"`
	End     clock.Instant `json:"end,omitempty"`
	Outcome string        `json:"outcome,omitempty"`
	// Writes are the effects that it asks for.
	Writes []Write `json:"writes,omitempty"`
}

// Write is an effect that an attempt asks for. The fields are those of Effect.
type Write struct {
	What      string `json:"what"`
	Name      string `json:"name,omitempty"`
	First     uint64 `json:"first,omitempty"`
	Last      uint64 `json:"last,omitempty"`
	InstantMS int64  `json:"instant_ms,omitempty"`
}

// Seal is a new leader's seal of the ledger, which acknowledged it at End: what has a
// smaller token and is sent later must be refused.
type Seal struct {
	Node  string        `json:"node"`
	Token fence.Token   `json:"token"`
	At    clock.Instant `json:"at"`
	End   clock.Instant `json:"end"`
}

// What an effect can be.
const (
	EffectTick       = "tick"
	EffectSequence   = "sequence"
	EffectCheckpoint = "checkpoint"
	EffectFiring     = "firing"
)

// Effect is a write that the ledger accepted or refused. The lines of one thing (What
// and Name) are in the ledger's order.
type Effect struct {
	What string `json:"what"`
	// Name of the sequence, checkpoint or job.
	Name string `json:"name,omitempty"`
	// N is its place among those of its What and Name, where the ledger counts.
	N      uint64      `json:"n,omitempty"`
	Token  fence.Token `json:"token"`
	Holder string      `json:"holder,omitempty"`
	First  uint64      `json:"first,omitempty"`
	Last   uint64      `json:"last,omitempty"`
	// InstantMS is the instant that was ticked or fired.
	InstantMS int64 `json:"instant_ms,omitempty"`
	// Refused is the reason of a refusal. Applied: it was made all the same, fencing
	// being off.
	Refused string      `json:"refused,omitempty"`
	Applied bool        `json:"applied,omitempty"`
	Current fence.Token `json:"current_token,omitempty"`
	// AtMS is the ledger's wall clock.
	AtMS int64 `json:"at_ms"`
}

// The states of a grant.
const (
	Led    = "led"
	Vacant = "vacant"
	Blind  = "unknown" // the observer cannot tell
)

// Grant is what an observer saw at the engine.
type Grant struct {
	Observer string        `json:"observer,omitempty"`
	State    string        `json:"state"`
	Token    fence.Token   `json:"token,omitempty"`
	Holder   string        `json:"holder,omitempty"`
	At       clock.Instant `json:"at"`
}

// What a fault does to the guarantees. Any other class excuses nothing.
const (
	// ClassKill: the target's beliefs are over.
	ClassKill = "kill"
	// ClassPause: the target does not run.
	ClassPause = "pause"
	// ClassClock: the target's clock is wrong by more than the stated bound. A clock
	// that is wrong within it is no excuse, and no ClassClock.
	ClassClock = "clock"
	// ClassForce: the target's session was closed by force.
	ClassForce = "force"
	// ClassQuorum: the engine has no quorum.
	ClassQuorum = "quorum"
	// ClassSilent: connections of the target went dead and were not closed, so that a
	// watch may have died without a word. It excuses nothing but G7's bound is longer.
	ClassSilent = "silent"
)

// Fault is what was broken. It may be written twice, with the same ID: when it began
// and when it was healed. A fault of a moment is healed when it begins.
type Fault struct {
	ID     string        `json:"id,omitempty"`
	Name   string        `json:"name"`
	Class  string        `json:"class,omitempty"`
	Target string        `json:"target,omitempty"`
	Begun  clock.Instant `json:"begun"`
	Healed clock.Instant `json:"healed,omitempty"`
	// Set and Held, where they are known, are the part of it that is sure: everything was
	// set by the one, and nothing had been undone by the other.
	Set  clock.Instant `json:"set,omitempty"`
	Held clock.Instant `json:"held,omitempty"`
	// Evidence says in words how one knows that it bit. No check reads it: Proof is what
	// is checked.
	Evidence string `json:"evidence,omitempty"`
	Proof    Proof  `json:"proof,omitzero"`
	// Missed is why it does not count: it did not bite, or hit another than it was meant
	// for. PartOf is the name of the fault that it is a part of, under another aspect.
	// Either excuses what its class does, and is no fault of its own.
	Missed string `json:"missed,omitempty"`
	PartOf string `json:"part_of,omitempty"`
}

// What proves a fault.
const (
	// ProofExited: the processes with these PIDs ended.
	ProofExited = "exited"
	// ProofStopped: the processes with these PIDs did not run between Set and Held.
	ProofStopped = "stopped"
	// ProofEnded: the target's term with this token ended.
	ProofEnded = "ended"
	// ProofFelt: keep-alives or writes of the target failed, it could not see who leads, or
	// a term of it ended.
	ProofFelt = "felt"
	// ProofMeasured: the lab measured it and the history does not show it. Such a fault has
	// no class, so it excuses nothing.
	ProofMeasured = "measured"
)

// Proof names what the history must show of a fault.
type Proof struct {
	Kind  string      `json:"kind,omitempty"`
	PIDs  []int       `json:"pids,omitempty"`
	Token fence.Token `json:"token,omitempty"`
}

// Counts reports whether it is a fault of its own that bit.
func (f Fault) Counts() bool { return f.Missed == "" && f.PartOf == "" }

// surely is the part of it that is known to have stood, if that was written down, and
// else all of it.
func (f Fault) surely() span {
	s := span{f.Begun, f.Healed}
	if f.Set != 0 {
		s.from = f.Set
	}
	if f.Held != 0 {
		s.to = f.Held
	}
	return s
}

func (Run) kind() string     { return "run" }
func (Process) kind() string { return "process" }
func (Call) kind() string    { return "call" }
func (Belief) kind() string  { return "belief" }
func (Seal) kind() string    { return "seal" }
func (Attempt) kind() string { return "attempt" }
func (Effect) kind() string  { return "effect" }
func (Grant) kind() string   { return "grant" }
func (Fault) kind() string   { return "fault" }

func (r Run) when() clock.Instant     { return r.At }
func (p Process) when() clock.Instant { return p.At }
func (c Call) when() clock.Instant    { return c.End }
func (b Belief) when() clock.Instant  { return b.At }
func (s Seal) when() clock.Instant    { return s.At }
func (a Attempt) when() clock.Instant { return a.At }
func (Effect) when() clock.Instant    { return 0 } // on the ledger's clock
func (g Grant) when() clock.Instant   { return g.At }
func (f Fault) when() clock.Instant   { return f.Begun }

// numbers reports whether a call was answered with numbers.
func (c Call) numbers() bool {
	return c.Error == "" && !c.Unknown && (c.What == "" || c.What == "next")
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func (r Run) ttl() time.Duration { return ms(r.TTLMS) }

func (r Run) wake() time.Duration { return ms(cmp.Or(r.WakeMS, 150)) }

func (r Run) late() time.Duration { return ms(cmp.Or(r.LateMS, 20)) }

func (r Run) seen() time.Duration { return ms(cmp.Or(r.SeenMS, 500)) }

// CrashBound is the longest failover after a crash and nothing else, with a round trip
// to the engine: TTL·(1 + Drift) + 3 round trips, and what the engine adds.
func (r Run) CrashBound(roundTrip time.Duration) time.Duration {
	return time.Duration(float64(r.ttl())*(1+r.Drift)) + 3*roundTrip + ms(r.EngineDelayMS)
}

// RecoveryBound is G7's: how long after the last of any number of faults nobody may
// lead. It is the simulator's sum without the room for a watch that died silently, and
// with what the engine adds.
func (r Run) RecoveryBound() time.Duration {
	return r.ttl()*11/10 + 7*ms(r.BeatMS) + 2*ms(r.CallTimeoutMS) + 2*ms(r.BackoffMaxMS) + ms(r.EngineDelayMS)
}

// silentWatch is what G7's bound leaves for a watch that died silently, where a fault
// can have done that.
const silentWatch = 12 * time.Second

// beliefBound is how long after the engine lost its quorum a leader may believe: a TTL
// on its own clock, counted from when it sent what was acknowledged last, which is
// before the loss.
func (r Run) beliefBound() time.Duration {
	return time.Duration(float64(r.ttl()) * (1 + r.Drift))
}

// SilentAfter is how long after the engine lost its quorum nobody is seen to believe: the
// bound of belief, and the instant's way from the node's timer to the history.
func (r Run) SilentAfter() time.Duration { return r.beliefBound() + r.wake() }
