package experiment

import (
	"fmt"
	"time"

	"github.com/tenurehq/tenure/lab/history"
)

// sweep is experiment 2.
func sweep() Experiment {
	return Experiment{
		Name: "2", Title: "sweep of TTL and beat: failovers, false failovers, the knee", Seed: 2,
		Question: "How long is a failover by TTL and by beat × misses, from which TTL on does load alone unseat no leader, and which TTL serves 99.995 % at four crashes a month?",
		Expectation: "A failover takes the TTL less up to one beat, and up to a second that the engine adds; misses only warn and change nothing. Raft takes one to two election timeouts. " +
			"Short TTLs lose leaders to load, long ones do not; the knee is at 3 s or below with etcd, and at 400 ms or below with Raft. " +
			"The fleets of all TTLs run at the same time, which is harsher than one at a time; where leaders are killed too, so that experiment 1 has the clean kills. They share the disturbance: processes that compute, four on each core; a garbage collector that never rests, in every node; an engine of low priority beside such processes and a disk that is synced all the time. " +
			"With Raft the nodes are the engine, so that the last includes the first, which is not run by itself; a patience of 30 s is not tried there, because twice that is more than a crash may cost.",
		Trials: sweepTrials,
		Takes:  func(size Size) time.Duration { return pick(size, 30*time.Second, 58*time.Minute) },
		Judge:  judgeSweep,
		figure: func(all []Outcome, note string) figure { return drawKnee(all, etcdEngine, note) },
		figures: func(all []Outcome, note string) map[string]figure {
			return map[string]figure{
				"knee-raft": drawKnee(all, raftEngine, note),
				"failover":  drawFailovers(killedOnly(all, false), note),
			}
		},
	}
}

// timing is one point of the sweep; no beat is the default, a quarter of the TTL.
type timing struct {
	ttl, beat time.Duration
	misses    int
}

func (t timing) String() string {
	if t.beat == 0 {
		return t.ttl.String()
	}
	return fmt.Sprintf("%v-%vx%d", t.ttl, t.beat, t.misses)
}

// beats are those that a TTL of 8 s allows: misses × beat stays within the trust that a
// keep-alive gives, 7.64 s.
func beats() []timing {
	const ttl = 8 * time.Second
	return []timing{
		{ttl, time.Second, 3}, {ttl, time.Second, 7}, {ttl, 2 * time.Second, 2}, {ttl, 2 * time.Second, 3},
		{ttl, 2500 * time.Millisecond, 2}, {ttl, 2500 * time.Millisecond, 3},
	}
}

func sweepTrials(size Size) (all []Trial) {
	const s = time.Second
	kills := func(engine string, rounds int, t timing) Trial {
		return Trial{
			Name: fmt.Sprintf("kill-%s-%v", engine, t), Engine: engine, TTL: t.ttl, Beat: t.beat, Misses: t.misses, Nodes: 3, Rate: 50, Rounds: rounds,
			Patience: s, Pass: safe("evidence"), play: killScript().play,
		}
	}
	// A node that a busy machine does not let run has paused, which G3 excepts, and no
	// history can tell: who believed when is told. Below the knee there may be no leader
	// long enough for anything to take effect.
	busy := func(kind, engine string, t timing) Trial {
		return Trial{
			Name: fmt.Sprintf("%s-%s-%v", kind, engine, t), Engine: engine, TTL: t.ttl, Beat: t.beat, Misses: t.misses, Nodes: 3, Rate: 20, Rounds: 1,
			Disturbed: kind, For: pick(size, 2*s, 10*time.Minute), Patience: 2 * s,
			Pass: []string{"token-order", "fence", "sequence", "linearizable", "ledger", "evidence", "history"}, Told: []string{"one-believer", "no-zombie", "recovery", "once"},
			play: disturbed,
		}
	}
	under := func(kind, engine string, timings ...timing) {
		var trials []Trial
		for _, t := range timings {
			trials = append(trials, busy(kind, engine, t))
		}
		all = append(all, share(&disturbance{kind: kind}, trials...)...)
	}
	if size == Quick {
		all = share(nil, kills(etcdEngine, 1, timing{ttl: 2 * s}), kills(etcdEngine, 1, timing{ttl: 3 * s}), kills(raftEngine, 1, timing{ttl: s}))
		under(busyCPU, etcdEngine, timing{ttl: 2 * s}, timing{ttl: 3 * s})
		under(busyGC, etcdEngine, timing{ttl: 2 * s})
		under(busyDisk, raftEngine, timing{ttl: s})
		return all
	}
	all = share(nil, kills(etcdEngine, 10, timing{ttl: 2 * s}), kills(etcdEngine, 10, timing{ttl: 3 * s}), kills(etcdEngine, 5, timing{ttl: 10 * s}), kills(etcdEngine, 3, timing{ttl: 30 * s}))
	var at8 []Trial
	for _, t := range beats() {
		at8 = append(at8, kills(etcdEngine, 5, t))
	}
	all = append(all, share(nil, at8...)...)
	// A follower's patience below 400 ms is for the disturbed: it does not keep a leader
	// long enough to be killed.
	all = append(all, share(nil, kills(raftEngine, 10, timing{ttl: 400 * time.Millisecond}), kills(raftEngine, 10, timing{ttl: s}), kills(raftEngine, 5, timing{ttl: 3 * s}), kills(raftEngine, 3, timing{ttl: 10 * s}))...)
	etcd := []timing{{ttl: 2 * s}, {ttl: 3 * s}, {ttl: 8 * s}, {ttl: 10 * s}, {ttl: 30 * s}, {8 * s, s, 7}, {8 * s, 2500 * time.Millisecond, 3}}
	raft := []timing{{ttl: 20 * time.Millisecond}, {ttl: 100 * time.Millisecond}, {ttl: 400 * time.Millisecond}, {ttl: s}, {ttl: 3 * s}, {ttl: 10 * s}}
	for _, kind := range []string{busyCPU, busyGC, busyDisk} {
		under(kind, etcdEngine, etcd...)
	}
	for _, kind := range []string{busyGC, busyDisk} {
		under(kind, raftEngine, raft...)
	}
	return all
}

// killedOnly are the outcomes in which leaders were killed; disturbed ones are left out.
func killedOnly(all []Outcome, beats bool) (some []Outcome) {
	for _, o := range all {
		if o.Disturbed == "" && (o.Beat != 0) == beats {
			some = append(some, o)
		}
	}
	return some
}

// falseFailovers are the terms that began while nobody had crashed, by why the one
// before had ended: from the beginning of the disturbance until what it did can no
// longer show. There are none only if one term spans all of the disturbance: a leader
// that was lost and not replaced is one, too.
func falseFailovers(o Outcome) (n int, causes map[string]int) {
	causes = map[string]int{}
	var busy history.Fault
	for _, f := range o.Report.Faults {
		if f.Name == "busy-"+o.Disturbed {
			busy = f
		}
	}
	last, kept := "", false
	for _, t := range o.Report.Terms {
		kept = kept || t.Began > 0 && t.Began <= busy.Begun && t.Ended >= busy.Healed
		if t.Began >= busy.Begun && t.Began <= busy.Healed.Add(o.TTL+time.Second) && busy.Begun > 0 {
			n++
			causes[last]++
		}
		last = t.Cause
	}
	if n == 0 && !kept {
		n, causes[last] = 1, 1
	}
	return n, causes
}
