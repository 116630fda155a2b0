package experiment

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
)

// Size is how much of an experiment is run.
type Size string

// The sizes: Quick has short TTLs and few rounds and is for every day, Full has the
// numbers that are told.
const (
	Quick Size = "quick"
	Full  Size = "full"
)

// Experiment is a question to a fleet. Everything but the functions is written down
// with the result.
type Experiment struct {
	// Name is short, such as 3b.
	Name  string `json:"name"`
	Title string `json:"title"`
	// Question, and what is expected; both were written before the run.
	Question    string `json:"question"`
	Expectation string `json:"expectation"`
	// Seed decides when in a beat a fault hits, and whom.
	Seed uint64 `json:"seed"`

	// Trials are the fleets that are started, one after the other.
	Trials func(Size) []Trial `json:"-"`
	// Judge turns what was seen into thresholds and tables. What the checks of each
	// trial say is judged besides.
	Judge func([]Outcome) ([]Threshold, []Table) `json:"-"`
	// figure, if there is one, is the experiment's own picture, besides the timelines.
	figure func(outcomes []Outcome, note string) figure
}

// Trial is one fleet and what is done to it.
type Trial struct {
	Name   string `json:"name"`
	Engine string `json:"engine"`
	// TTL of the lease; for Raft its election timeout.
	TTL    time.Duration `json:"ttl"`
	Nodes  int           `json:"nodes"`
	Rate   float64       `json:"rate"`
	Rounds int           `json:"rounds"`
	// Patience is how long a caller waits for one answer before its outcome is unknown.
	Patience time.Duration `json:"patience"`
	// Plant are bugs that the nodes have.
	Plant    []string `json:"plant,omitempty"`
	Unfenced bool     `json:"unfenced,omitempty"`

	// Pass are the checks that must pass, Broken those that must fail, because the
	// trial breaks them on purpose, Told those whose verdict is told and not judged.
	Pass   []string `json:"pass"`
	Broken []string `json:"broken,omitempty"`
	Told   []string `json:"told,omitempty"`

	// play is called when somebody leads and callers call.
	play func(context.Context, *stage) error
}

// Round is one round of a trial as the script saw it.
type Round struct {
	Kind string `json:"kind"`
	// Node led with Token before, and Successor with Next after.
	Node      string `json:"node"`
	Token     uint64 `json:"token"`
	Successor string `json:"successor"`
	Next      uint64 `json:"next"`
	// AskedAt is when a handover was asked for, on the host's clock.
	AskedAt int64 `json:"asked_at,omitempty"`
	// Refused: the ledger's list of refused writes has one of Node with Token, below
	// Mark, and it was not applied. Applied: it has, and it was.
	Refused bool   `json:"refused,omitempty"`
	Applied bool   `json:"applied,omitempty"`
	Mark    uint64 `json:"mark,omitempty"`
	// SteppedDown: the node did so by itself.
	SteppedDown bool `json:"stepped_down,omitempty"`
}

// All are the experiments, in order.
func All() []Experiment {
	return []Experiment{kill(), cut(), twoBelieve(), pauseBetween(), fencingOff(), handover()}
}

// Quickly are those of the quick set.
func Quickly() []Experiment {
	var few []Experiment
	for _, e := range All() {
		if e.Name != "3b" { // 5 has it, with and without the fence
			few = append(few, e)
		}
	}
	return few
}

// Find returns experiments by name.
func Find(names ...string) ([]Experiment, error) {
	var found []Experiment
	for _, name := range names {
		n := len(found)
		var known []string
		for _, e := range All() {
			known = append(known, e.Name)
			if e.Name == strings.ToLower(name) {
				found = append(found, e)
			}
		}
		if len(found) == n {
			return nil, fmt.Errorf("there is no experiment %q: there are %s, and quick and all", name, strings.Join(known, ", "))
		}
	}
	return found, nil
}

// safe are the checks of every trial in which nothing is broken on purpose.
func safe(more ...string) []string {
	return append([]string{"token-order", "fence", "one-believer", "no-zombie", "sequence", "linearizable", "ledger", "recovery", "once", "history"}, more...)
}

// The engines.
const (
	etcdEngine = "etcd"
	raftEngine = "raft"
)

// describe is the trial in the words of a history.
func (t Trial) describe(e Experiment, size Size) check.Run {
	r := check.Run{
		Experiment: e.Name + " " + t.Name, Seed: e.Seed, Engine: t.Engine, Group: group, Nodes: t.Nodes, Unfenced: t.Unfenced,
		Command: e.command(size), TTLMS: t.TTL.Milliseconds(), WakeMS: 500,
	}
	r.Checks = append(append(append(r.Checks, t.Pass...), t.Broken...), t.Told...)
	if t.Engine == raftEngine {
		timing := raft.Timing{Heartbeat: t.TTL}.Resolve()
		r.BeatMS, r.CallTimeoutMS, r.BackoffMaxMS, r.Drift = timing.Beat.Milliseconds(), timing.Call.Milliseconds(), timing.Beat.Milliseconds(), timing.Drift
		// A follower waits up to twice its patience, and a split vote costs an election more.
		r.EngineDelayMS = (timing.Heartbeat + timing.Election).Milliseconds()
		return r
	}
	timing := lease.Timing{TTL: t.TTL}.Resolve()
	r.BeatMS, r.CallTimeoutMS, r.BackoffMaxMS, r.Drift = timing.Beat.Milliseconds(), timing.CallTimeout.Milliseconds(), timing.BackoffMax.Milliseconds(), timing.Drift
	r.EngineDelayMS = 1000 // etcd looks for expired leases twice a second, and revokes by a commit
	return r
}

func (e Experiment) command(size Size) string {
	c := "lab run " + e.Name
	if size == Quick {
		c += " --quick"
	}
	return fmt.Sprintf("%s --seed %d", c, e.Seed)
}

// group is what every trial elects a leader of.
const group = "billing"
