package experiment

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/history"
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
	// Seed decides the delays and choices of the lab; who leads is the fleet's affair.
	Seed uint64 `json:"seed"`

	// Trials are the fleets that are started, one after the other.
	Trials func(Size) []Trial `json:"-"`
	// Judge turns what was seen into thresholds and tables. What the checks of each
	// trial say is judged besides.
	Judge func([]Outcome) ([]Threshold, []Table) `json:"-"`
	// Takes is about how long it takes, for people; nil: as its trials suggest.
	Takes func(Size) time.Duration `json:"-"`
	// figure, if there is one, is the experiment's own picture, besides the timelines.
	figure func(outcomes []Outcome, note string) figure
	// figures, if there are any, are more of them, by the name of the file.
	figures func(outcomes []Outcome, note string) map[string]figure
	// repeat is the command that repeats it, if that is not lab run.
	repeat string
}

// Trial is one fleet and what is done to it.
type Trial struct {
	Name   string `json:"name"`
	Engine string `json:"engine"`
	// TTL of the lease; for Raft its election timeout.
	TTL time.Duration `json:"ttl"`
	// Beat and Misses of the lease; zero: the default.
	Beat   time.Duration `json:"beat,omitempty"`
	Misses int           `json:"misses,omitempty"`
	Nodes  int           `json:"nodes"`
	// Engines is how many members the engine has, if not one.
	Engines int `json:"engines,omitempty"`
	// Workers is how many there are. They are given a job and a standing order, and what
	// they take is written down.
	Workers int     `json:"workers,omitempty"`
	Rate    float64 `json:"rate"`
	Rounds  int     `json:"rounds"`
	// Patience is how long a caller waits for one answer before its outcome is unknown.
	Patience time.Duration `json:"patience"`
	// Every is the time between rounds, where the script keeps one.
	Every time.Duration `json:"every,omitempty"`
	// Disturbed is with what the machine is, for For.
	Disturbed string        `json:"disturbed,omitempty"`
	For       time.Duration `json:"for,omitempty"`
	// Plant are bugs that the nodes have.
	Plant    []string `json:"plant,omitempty"`
	Unfenced bool     `json:"unfenced,omitempty"`

	// Pass are the checks that must pass, Broken those that must fail, because the
	// trial breaks them on purpose, Told those whose verdict is told and not judged.
	Pass   []string `json:"pass"`
	Broken []string `json:"broken,omitempty"`
	Told   []string `json:"told,omitempty"`

	// prepare, if given, is called before the fleet is started, with the trial's folder;
	// undo is called when it has stopped.
	prepare func(dir string) (undo func() error, err error)
	// fleet, if given, changes how the fleet is started.
	fleet func(*lab.Config)
	// play is called when somebody leads and callers call.
	play func(context.Context, *trialRun) error
	// after, if there is one, is called with the nodes' traces before they are removed.
	after func(traces string, o *Outcome) error
	// with are the trials that run at the same time; nil: none.
	with *trialBatch
}

// All are the experiments, in order.
func All() []Experiment {
	return []Experiment{kill(), sweep(), cut(), twoBelieve(), pauseBetween(), fencingOff(), churn(), handover(), quorum(), member(), ledgerKilled(), clocks(), disk(), flap(), storm()}
}

// Quickly are those of the quick set.
func Quickly() []Experiment {
	var few []Experiment
	for _, e := range All() {
		switch e.Name {
		case "2", "6", "8", "9", "10", "11", "12", "13": // they take their time
		case "3b": // 5 has it, with and without the fence
		case "14": // it has no quick form that says much
		default:
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

const (
	// wakeMS is how long after a pause a node may take to see what it missed; 23 ms is the
	// longest that was seen.
	wakeMS = 150
	// lateMS is how long a node that runs may stand between a look at its clock and the
	// line that it writes down. On a machine that is starved on purpose, or by tests beside
	// it as in the quick form, every process is paused now and then: there it is wakeMS.
	lateMS = 20
)

// describe is the trial in the words of a history.
func (t Trial) describe(e Experiment, size Size) history.Run {
	r := history.Run{
		Experiment: e.Name + " " + t.Name, Seed: e.Seed, Engine: t.Engine, Group: group, Nodes: t.Nodes, Unfenced: t.Unfenced,
		Command: e.command(size), TTLMS: t.TTL.Milliseconds(), WakeMS: wakeMS, LateMS: lateMS, TickMS: tickMS,
	}
	if size == Quick || t.Disturbed != "" {
		r.LateMS = wakeMS
	}
	r.Checks = append(append(append(r.Checks, t.Pass...), t.Broken...), t.Told...)
	if t.Engine == raftEngine {
		timing := raft.Timing{Heartbeat: t.TTL}.Resolve()
		r.BeatMS, r.CallTimeoutMS, r.BackoffMaxMS, r.Drift = timing.Beat.Milliseconds(), timing.Call.Milliseconds(), timing.Beat.Milliseconds(), timing.Drift
		// A follower waits up to twice its patience, and a split vote costs an election more.
		r.EngineDelayMS = (timing.Heartbeat + timing.Election).Milliseconds()
		return r
	}
	timing := lease.Timing{TTL: t.TTL, Beat: t.Beat, Misses: t.Misses}.Resolve()
	r.BeatMS, r.CallTimeoutMS, r.BackoffMaxMS, r.Drift = timing.Beat.Milliseconds(), timing.CallTimeout.Milliseconds(), timing.BackoffMax.Milliseconds(), timing.Drift
	r.EngineDelayMS = 1000 // etcd looks for expired leases twice a second, and revokes by a commit
	return r
}

// LoadRun describes a history of lab load.
func LoadRun(group string) history.Run {
	return history.Run{Experiment: "load", Group: group, Checks: []string{"sequence", "linearizable"}}
}

// Expected says what this program requires of the run that a history is of: its
// configuration and its checks. It fails if this program has no such run.
func Expected(run history.Run) (history.Run, error) {
	if run.Experiment == "load" {
		return LoadRun(run.Group), nil
	}
	name, trial, _ := strings.Cut(run.Experiment, " ")
	var found []Experiment
	var err error
	if engine, ok := strings.CutPrefix(name, "storm-"); ok {
		var e Experiment
		e, err = Storm{Engine: engine, For: fullStorm, Seed: run.Seed}.Experiment()
		found = []Experiment{e}
	} else {
		found, err = Find(name)
	}
	if err != nil {
		return history.Run{}, err
	}
	size := Full
	if strings.Contains(run.Command, " --quick") {
		size = Quick
	}
	for _, t := range found[0].Trials(size) {
		if t.Name != trial {
			continue
		}
		want := t.describe(found[0], size)
		want.Seed, want.Command = run.Seed, run.Command
		for _, s := range jobSeconds() {
			want.Jobs = append(want.Jobs, history.Job{EveryMS: 1000 * s})
		}
		return want, nil
	}
	return history.Run{}, fmt.Errorf("experiment %s has no trial %q in its %s form", name, trial, size)
}

func (e Experiment) command(size Size) string {
	if e.repeat != "" {
		return e.repeat
	}
	c := "lab run " + e.Name
	if size == Quick {
		c += " --quick"
	}
	return fmt.Sprintf("%s --seed %d", c, e.Seed)
}

// group is what every trial elects a leader of.
const group = "billing"
