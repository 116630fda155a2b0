package history

import (
	"fmt"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// Event is one line of a history: a Run, Process, Call, Belief, Seal, Attempt, Effect,
// Grant or Fault.
type Event interface {
	// head returns the kind of the event and its instants. The first instant orders the
	// events of a kind: it is the end of a call and the beginning of everything else.
	head() (kind string, instants []clock.Instant)
}

// When returns the instant that orders an event among others of its kind.
func When(e Event) clock.Instant {
	_, instants := e.head()
	return instants[0]
}

// Place is a line of a history, or a row of a ledger.
type Place struct {
	File string `json:"file"`
	Line int    `json:"line"`
}

func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// Source is part of every event that can be evidence. The reader sets Line.
type Source struct {
	Line Place `json:"-"`
}

func (s *Source) setLine(at Place) { s.Line = at }

// Run describes the run. A history has one.
type Run struct {
	Source
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
	// EngineDelayMS is how late the engine notices an expired session, and how long it
	// acknowledges writes after it lost its quorum.
	EngineDelayMS int64 `json:"engine_delay_ms,omitempty"`
	// WakeMS is how long a process needs after a pause to notice what it missed. Default 150.
	WakeMS int64 `json:"wake_ms,omitempty"`
	// LateMS is how long a running process needs to record what it saw. Default 20.
	LateMS int64 `json:"late_ms,omitempty"`
	// SeenMS is how late an observer may see a grant. Default 500.
	SeenMS int64 `json:"seen_ms,omitempty"`

	// Jobs are the jobs that must have fired.
	Jobs []Job `json:"jobs,omitempty"`
	// TickMS is the time between two ticks; 0 if it is not known.
	TickMS int64 `json:"tick_ms,omitempty"`
	// Checks are the names of the checks for this run. Default all; a check that finds
	// nothing to compare is then unknown. What the code of the experiment requires takes
	// precedence (check.Options.Expect).
	Checks []string `json:"checks,omitempty"`
}

// Job is a job whose every instant must fire, even if nobody led at that instant: FirstMS,
// then every EveryMS until at least LastMS, on the ledger's clock. With EveryMS 0 only
// FirstMS fires.
type Job struct {
	Key     string `json:"key"`
	FirstMS int64  `json:"first_ms"`
	EveryMS int64  `json:"every_ms,omitempty"`
	LastMS  int64  `json:"last_ms,omitempty"`
}

// Process is the start of a node's process.
type Process struct {
	Source
	Node string        `json:"node"`
	PID  int           `json:"pid"`
	At   clock.Instant `json:"at"`
}

// Call is a client's call. Without Error its answer was the numbers First to Last.
type Call struct {
	Source
	// What was called; empty or "next" is a call for numbers.
	What   string        `json:"what,omitempty"`
	Client string        `json:"client,omitempty"`
	Start  clock.Instant `json:"start"`
	End    clock.Instant `json:"end"`
	Node   string        `json:"node,omitempty"`
	Token  fence.Token   `json:"token,omitempty"`
	First  uint64        `json:"first,omitempty"`
	Last   uint64        `json:"last,omitempty"`
	Error  string        `json:"error,omitempty"`
	// Unknown means that the call failed and may have taken effect.
	Unknown bool `json:"unknown,omitempty"`
}

// ForNumbers reports whether a call asked for numbers.
func (c Call) ForNumbers() bool { return c.What == "" || c.What == "next" }

// Answered reports whether a call was answered with numbers.
func (c Call) Answered() bool { return c.Error == "" && !c.Unknown && c.ForNumbers() }

// The states of a belief.
const (
	Began   = "began"   // the term began
	Ended   = "ended"   // the term ended, with a cause
	Refused = "refused" // Term.Check refused
	Missed  = "missed"  // a keep-alive failed; it names no term
)

// Belief is what a node recorded about its term.
type Belief struct {
	Source
	Node  string        `json:"node"`
	Token fence.Token   `json:"token"`
	State string        `json:"state"`
	At    clock.Instant `json:"at"`
	// Cause of an end: expired, lost, resigned, transferred, unhealthy.
	Cause string `json:"cause,omitempty"`
}

// The outcomes of an attempt. An outcome that is not recorded is empty.
const (
	OutcomeOK      = "ok"
	OutcomeRefused = "refused"
	OutcomeUnknown = "unknown"
	OutcomeFailed  = "failed" // certainly not applied
)

// Attempt is a leader's attempt to write, recorded before it is sent.
type Attempt struct {
	Source
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

// Seal is a new leader's seal, which the ledger acknowledged at End. The ledger must
// refuse every smaller token that is sent later.
type Seal struct {
	Source
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

// Effect is a write that the ledger accepted or refused. Effects with the same What and
// Name are in the ledger's order.
type Effect struct {
	Source
	What string `json:"what"`
	// Name of the sequence, checkpoint or job.
	Name string `json:"name,omitempty"`
	// N counts the effects with the same What and Name, where the ledger counts them.
	N      uint64      `json:"n,omitempty"`
	Token  fence.Token `json:"token"`
	Holder string      `json:"holder,omitempty"`
	First  uint64      `json:"first,omitempty"`
	Last   uint64      `json:"last,omitempty"`
	// InstantMS is the instant that ticked or fired.
	InstantMS int64 `json:"instant_ms,omitempty"`
	// Refused is the reason of a refusal. Applied means that fencing was off, so the write
	// took effect anyway.
	Refused string      `json:"refused,omitempty"`
	Applied bool        `json:"applied,omitempty"`
	Current fence.Token `json:"current_token,omitempty"`
	// AtMS is the ledger's wall clock.
	AtMS int64 `json:"at_ms"`
}

// Accepted reports whether the write took effect.
func (e Effect) Accepted() bool { return e.Refused == "" || e.Applied }

// The states of a grant.
const (
	Led    = "led"
	Vacant = "vacant"
	Blind  = "unknown" // the observer cannot tell
)

// Grant is what an observer saw at the engine.
type Grant struct {
	Source
	Observer string        `json:"observer,omitempty"`
	State    string        `json:"state"`
	Token    fence.Token   `json:"token,omitempty"`
	Holder   string        `json:"holder,omitempty"`
	At       clock.Instant `json:"at"`
}

// The class of a fault says which guarantees it affects. A fault without a class excuses
// nothing.
const (
	ClassKill   = "kill"   // the target's terms end
	ClassPause  = "pause"  // the target does not run
	ClassClock  = "clock"  // the target's clock is wrong by more than the stated bound
	ClassForce  = "force"  // the target's session was closed by force
	ClassQuorum = "quorum" // the engine has no quorum
	// ClassSilent: connections of the target failed without being closed, so nobody may
	// notice that a watch failed. All guarantees still hold, G7 with a longer bound.
	ClassSilent = "silent"
)

// Fault is a fault that was injected. It may be written twice with the same ID: when it
// began and when it was healed. Begun and Healed of a momentary fault are equal.
type Fault struct {
	Source
	ID     string        `json:"id,omitempty"`
	Name   string        `json:"name"`
	Class  string        `json:"class,omitempty"`
	Target string        `json:"target,omitempty"`
	Begun  clock.Instant `json:"begun"`
	Healed clock.Instant `json:"healed,omitempty"`
	// The fault was certainly in effect from Set to Held, where these are recorded.
	Set  clock.Instant `json:"set,omitempty"`
	Held clock.Instant `json:"held,omitempty"`
	// Evidence says in words what shows the effect. The checks read Proof instead.
	Evidence string `json:"evidence,omitempty"`
	Proof    Proof  `json:"proof,omitzero"`
	// Missed is why the fault does not count: it had no effect or hit another target. PartOf
	// is the name of the fault that this one is part of. Both excuse what their class
	// excuses and are not counted.
	Missed string `json:"missed,omitempty"`
	PartOf string `json:"part_of,omitempty"`
}

// What proves a fault.
const (
	ProofExited  = "exited"  // the processes with these PIDs ended
	ProofStopped = "stopped" // the processes with these PIDs did not run between Set and Held
	ProofEnded   = "ended"   // the target's term with this token ended
	// ProofFelt: keep-alives or writes of the target failed, it could not see who leads, or
	// one of its terms ended.
	ProofFelt = "felt"
	// ProofMeasured: the lab measured the effect and the history does not show it. Such a
	// fault has no class.
	ProofMeasured = "measured"
)

// Proof names what the history must show of a fault.
type Proof struct {
	Kind  string      `json:"kind,omitempty"`
	PIDs  []int       `json:"pids,omitempty"`
	Token fence.Token `json:"token,omitempty"`
}

// Counts reports whether the fault had an effect and is not part of another.
func (f Fault) Counts() bool { return f.Missed == "" && f.PartOf == "" }

func (r Run) head() (string, []clock.Instant)     { return "run", []clock.Instant{r.At} }
func (p Process) head() (string, []clock.Instant) { return "process", []clock.Instant{p.At} }
func (c Call) head() (string, []clock.Instant)    { return "call", []clock.Instant{c.End, c.Start} }
func (b Belief) head() (string, []clock.Instant)  { return "belief", []clock.Instant{b.At} }
func (s Seal) head() (string, []clock.Instant)    { return "seal", []clock.Instant{s.At, s.End} }
func (a Attempt) head() (string, []clock.Instant) { return "attempt", []clock.Instant{a.At, a.End} }
func (Effect) head() (string, []clock.Instant)    { return "effect", []clock.Instant{0} } // it has the ledger's clock
func (g Grant) head() (string, []clock.Instant)   { return "grant", []clock.Instant{g.At} }
func (f Fault) head() (string, []clock.Instant) {
	return "fault", []clock.Instant{f.Begun, f.Healed, f.Set, f.Held}
}
