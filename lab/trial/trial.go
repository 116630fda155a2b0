// Package trial runs one fleet of real processes, injects faults into it under load, and
// checks what it did.
//
// A Trial declares the fleet and its script. A script is usually a Loop: what one round
// does, with faults from the one table of faults (chaos.Kinds). While the script runs,
// callers call the fleet and jobs fire. Every call, attempt to write, term and effect is
// recorded as a history of package check, which is then checked without the fleet. A check
// that could not decide has not passed.
package trial

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/load"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/verdict"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/server/engines"
)

// The engines that experiments are written for. On runs them on the others of lab.Backends.
const (
	Etcd = "etcd"
	Raft = "raft"
)

// Group is the group that every fleet elects a leader of.
const Group = "billing"

// Trial is one fleet and what is done to it.
type Trial struct {
	Name   string `json:"name"`
	Engine string `json:"engine"`
	// TTL of the lease; for Raft the election timeout.
	TTL time.Duration `json:"ttl"`
	// Beat and Misses of the lease; zero: the default.
	Beat   time.Duration `json:"beat,omitempty"`
	Misses int           `json:"misses,omitempty"`
	Nodes  int           `json:"nodes"`
	// Engines is the number of etcd members; zero: one.
	Engines int `json:"engines,omitempty"`
	// Workers is the number of workers; what they accept is recorded by WatchWorkers.
	Workers int `json:"workers,omitempty"`
	// Rate is how many calls a second are made.
	Rate   float64 `json:"rate"`
	Rounds int     `json:"rounds"`
	// Patience is the timeout of one call; after it the outcome is unknown.
	Patience time.Duration `json:"patience"`
	// Every is the time between rounds, where the script uses one.
	Every time.Duration `json:"every,omitempty"`
	// Disturbed names the disturbance of the machine, which lasts For.
	Disturbed string        `json:"disturbed,omitempty"`
	For       time.Duration `json:"for,omitempty"`
	// Plant lists the bugs planted in the nodes.
	Plant    []string `json:"plant,omitempty"`
	Unfenced bool     `json:"unfenced,omitempty"`
	// Pulse gives the nodes keepers. Without them only the TTL reveals a crash.
	Pulse bool `json:"pulse,omitempty"`

	// Pass lists the checks that must pass, Broken those that must fail because the trial
	// breaks them on purpose, Told those that are reported only.
	Pass   []string `json:"pass"`
	Broken []string `json:"broken,omitempty"`
	Told   []string `json:"told,omitempty"`

	// Prepare, if set, runs before the fleet starts; undo runs after it has stopped.
	Prepare func(dir string) (undo func() error, err error) `json:"-"`
	// Fleet, if set, changes the fleet's configuration.
	Fleet func(*lab.Config) `json:"-"`
	// Play is the script. It runs when there is a leader and callers call.
	Play func(context.Context, *Run) error `json:"-"`
	// After, if set, runs before the nodes' traces are removed.
	After func(traces string, o *Outcome) error `json:"-"`

	batch *batch // trials that run at the same time; nil: none
}

// New returns a trial of three nodes that must keep every guarantee.
func New(engine string, ttl time.Duration, rate float64, rounds int, script Loop) Trial {
	return Trial{
		Name: engine + "-" + ttl.String(), Engine: engine, TTL: ttl, Nodes: 3, Rate: rate, Rounds: rounds,
		Patience: time.Second, Pass: Safe("evidence"), Play: script.Play,
	}
}

// On returns the trials on other engines: those on etcd for each engine, and those on Raft for
// Raft. Trials that run at the same time do so with those of the same engine.
func On(engine string, all []Trial) (on []Trial) {
	base := engine
	if engine != Raft {
		base = Etcd
	}
	for _, together := range Batches(all) {
		var some []Trial
		for _, t := range together {
			if t.Engine == base {
				t.Name, t.Engine, t.Engines = strings.Replace(t.Name, base, engine, 1), engine, 0
				some = append(some, t)
			}
		}
		if len(some) > 1 || len(some) == 1 && some[0].batch != nil {
			some = Together(some[0].Disturbed, some...)
		}
		on = append(on, some...)
	}
	return on
}

// Safe lists the checks of a trial that breaks nothing on purpose, and more.
func Safe(more ...string) []string {
	return append([]string{"token-order", "fence", "one-believer", "no-zombie", "sequence", "linearizable", "ledger", "recovery", "once", "history"}, more...)
}

// Checks lists all checks of the trial.
func (t Trial) Checks() (all []string) {
	return append(append(append(all, t.Pass...), t.Broken...), t.Told...)
}

const (
	// WakeMS is how long after a pause a node may take to see what it missed. The longest
	// seen is 23 ms.
	WakeMS = 150
	lateMS = 20 // how long a running node may take from reading its clock to recording it
	tickMS = 1000
)

// Describe returns the trial as its history describes it: timing, nodes and checks.
func (t Trial) Describe() history.Run {
	r := history.Run{Engine: t.Engine, Group: Group, Nodes: t.Nodes, Unfenced: t.Unfenced, TTLMS: t.TTL.Milliseconds(), WakeMS: WakeMS, LateMS: lateMS, TickMS: tickMS, Checks: t.Checks()}
	if t.Engine == Raft {
		timing := raft.Timing{Heartbeat: t.TTL}.Resolve()
		r.BeatMS, r.CallTimeoutMS, r.BackoffMaxMS, r.Drift = timing.Beat.Milliseconds(), timing.Call.Milliseconds(), timing.Beat.Milliseconds(), timing.Drift
		// A follower waits up to twice its election timeout, and a split vote costs one more election.
		r.EngineDelayMS = (timing.Heartbeat + timing.Election).Milliseconds()
		return r
	}
	r.EngineDelayMS = 1000 // etcd looks for expired leases twice a second and revokes them by a commit
	for _, e := range engines.All() {
		if e.Name == t.Engine && e.Caps.Observed {
			r.EngineDelayMS = e.Caps.Late(t.TTL).Milliseconds()
		}
	}
	timing := lease.Timing{TTL: t.TTL, Beat: t.Beat, Misses: t.Misses}.Resolve()
	r.BeatMS, r.CallTimeoutMS, r.BackoffMaxMS, r.Drift = timing.Beat.Milliseconds(), timing.CallTimeout.Milliseconds(), timing.BackoffMax.Milliseconds(), timing.Drift
	return r
}

// args returns the flags of the nodes that follow from the timing.
func (t Trial) args() (args []string) {
	if t.Engine == Raft {
		return []string{"--election-timeout", t.TTL.String()}
	}
	if t.Beat != 0 {
		args = append(args, "--renew-interval", t.Beat.String(), "--misses", strconv.Itoa(t.Misses))
	}
	// A node rejects a recovery objective that its TTL alone exceeds.
	const target, detect = 30, 9 // seconds, the nodes' defaults
	if t.TTL > detect*time.Second {
		args = append(args, "--rto", (t.TTL*target/detect + time.Second).String())
	}
	return args
}

// Outcome is the result of a trial.
type Outcome struct {
	Trial
	// Dir holds the history, the ledger's database and the logs.
	Dir     string         `json:"dir"`
	Seconds float64        `json:"seconds"`
	Rounds  []Round        `json:"rounds_seen"`
	Load    load.Report    `json:"load"`
	Report  verdict.Report `json:"report"`
	Damage  Damage         `json:"damage"`
	Effects []Effect       `json:"effects"`
	// Orders are the workers' counters, recorded at each change.
	Orders []WorkerCounts `json:"orders,omitempty"`
	// Cost is what a series of kills cost the engine.
	Cost *Cost `json:"churn,omitempty"`
}

// Round is one round of a trial as the script saw it.
type Round struct {
	Kind string `json:"kind"`
	// Node led with Token before the fault, Successor with Next after it.
	Node      string      `json:"node"`
	Token     fence.Token `json:"token"`
	Successor string      `json:"successor"`
	Next      fence.Token `json:"next"`
	// Other is the target of a transfer, or the node that was cut off together with Node.
	Other string `json:"other,omitempty"`
	// Left is the node that shut down in order during the round.
	Left string `json:"left,omitempty"`
	// AskedAt is when a handover was requested, on the host's clock.
	AskedAt clock.Instant `json:"asked_at,omitempty"`
	// Refused: the ledger refused a write of Node with Token, which is below Mark.
	// Applied: it applied that write.
	Refused bool        `json:"refused,omitempty"`
	Applied bool        `json:"applied,omitempty"`
	Mark    fence.Token `json:"mark,omitempty"`
	// SteppedDown: the node stepped down by itself.
	SteppedDown bool `json:"stepped_down,omitempty"`
	// Begun and Healed bound the fault or, where the script measures it, the time in which
	// the fault was certainly in effect.
	Begun  clock.Instant `json:"begun,omitempty"`
	Healed clock.Instant `json:"healed,omitempty"`
	// Asked is the number of calls made during the fault, Answered those that were answered.
	Asked    int64 `json:"asked,omitempty"`
	Answered int64 `json:"answered,omitempty"`
	// Failover is the new leader's record of the failover, phase by phase, where the script reads it.
	Failover *api.Failover `json:"failover,omitempty"`
	// Seen is other evidence in words.
	Seen string `json:"seen,omitempty"`
}

// Cost is what a series of kills cost the engine.
type Cost struct {
	// Seconds is how long the kills took. Calm and Storm are the calls to the engine a second
	// before and during them, by method, as the engine counts them.
	Seconds float64            `json:"seconds"`
	Calm    map[string]float64 `json:"calm"`
	Storm   map[string]float64 `json:"storm"`
	// Tries and Calls are what each vacancy caused, as the nodes count it.
	Tries []int `json:"tries"`
	Calls []int `json:"calls"`
}

// Term returns the term with a token, or the zero value.
func (o Outcome) Term(token fence.Token) (t verdict.Term) {
	for _, x := range o.Report.Terms {
		if x.Token == token {
			return x
		}
	}
	return t
}

// Change returns the term that a round ended and the next one that tried to write.
func (o Outcome) Change(r Round) (old, next verdict.Term, ok bool) {
	old = o.Term(r.Token)
	for _, t := range o.Report.Terms {
		if t.Token > r.Token && t.Attempts > 0 {
			return old, t, old.Attempts > 0
		}
	}
	return old, next, false
}

// StaleWrites adds a row about stale writes to a table.
func (o Outcome) StaleWrites(j measure.Judge) {
	v, _ := o.Report.Verdict("sequence")
	j.Row("stale writes", []string{"refused", "accepted", "numbers reused", "calls answered", "outcome unknown"},
		o.Damage.Refused, o.Damage.Applied, o.Damage.Reused, v.Count("calls answered"), v.Count("calls of unknown outcome"))
}

// Count counts the rounds for which is returns true.
func (o Outcome) Count(is func(Round) bool) int {
	return len(o.Measure(func(r Round) (time.Duration, bool) { return 0, is(r) }))
}

// Measure measures the rounds for which of returns true.
func (o Outcome) Measure(of func(Round) (time.Duration, bool)) (s measure.Series) {
	for _, r := range o.Rounds {
		if d, ok := of(r); ok {
			s = append(s, d)
		}
	}
	return s
}

// Failovers measures each round that changed the leader. writes are from the old leader's
// last write to the new leader's first, by when they were sent, of those that the ledger
// acknowledged. answers are from the last to the first answer that callers got.
func (o Outcome) Failovers() (writes, answers measure.Series) {
	var answered []Effect
	for _, t := range o.Report.Terms {
		if t.Answers > 0 {
			answered = append(answered, Effect{t.Node, t.Token, t.FirstAnswer, t.LastAnswer})
		}
	}
	return o.gaps(o.Effects), o.gaps(answered)
}

func (o Outcome) gaps(effects []Effect) measure.Series {
	return o.Measure(func(r Round) (time.Duration, bool) {
		var old, next Effect
		for _, e := range effects {
			switch {
			case e.Token == r.Token:
				old = e
			case e.Token > r.Token && (next.Token == 0 || e.Token < next.Token):
				next = e
			}
		}
		return next.First.Sub(old.Last), old.Token > 0 && next.Token > 0
	})
}

func now() clock.Instant { return clock.System().Now() }
