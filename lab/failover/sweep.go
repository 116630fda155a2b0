package failover

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab/disturb"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/plot"
	"github.com/tenurehq/tenure/lab/trial"
)

// Sweep is experiment 2.
func Sweep() experiment.Experiment {
	return experiment.Experiment{
		Name: "2", Title: "sweep of TTL and beat: failovers, false failovers, the knee", Seed: 2,
		Question: "How long is a failover by TTL and by beat × misses, from which TTL on does load alone unseat no leader, and which TTL serves 99.995 % at four crashes a month?",
		Expectation: "A failover takes the TTL less up to one beat, and up to a second that the engine adds; misses only warn and change nothing. Raft takes one to two election timeouts. " +
			"Short TTLs lose leaders to load, long ones do not; the knee is at 3 s or below with etcd, and at 400 ms or below with Raft. " +
			"The fleets of all TTLs run at the same time, which is harsher than one at a time; where leaders are killed too, so that experiment 1 has the clean kills. They share the disturbance: processes that compute, four on each core; a garbage collector that never rests, in every node; an engine of low priority beside such processes and a disk that is synced all the time. " +
			"With Raft the nodes are the engine, so that the last includes the first, which is not run by itself; a patience of 30 s is not tried there, because twice that is more than a crash may cost.",
		Trials:  sweepTrials,
		Takes:   func(size experiment.Size) time.Duration { return experiment.Pick(size, 30*time.Second, 58*time.Minute) },
		Compare: judgeSweep,
		Figures: func(all []trial.Outcome, note string) []experiment.Figure {
			figures := []experiment.Figure{{Name: "failover", Drawing: drawFailovers(killedOnly(all, false), note)}}
			for _, engine := range enginesOf(all) {
				name := "knee-" + engine
				if engine == trial.Etcd {
					name = "figure"
				}
				figures = append(figures, experiment.Figure{Name: name, Drawing: drawKnee(all, engine, note)})
			}
			return figures
		},
	}
}

// timing is one point of the sweep. Without a beat it is the default, a quarter of the TTL.
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

// ttls are timings with the default beat.
func ttls(all ...time.Duration) (timings []timing) {
	for _, ttl := range all {
		timings = append(timings, timing{ttl: ttl})
	}
	return timings
}

func sweepTrials(size experiment.Size) (all []trial.Trial) {
	const s, ms = time.Second, time.Millisecond
	// kills adds trials that run at the same time, with a number of rounds for each.
	kills := func(engine string, rounds []int, timings ...timing) (trials []trial.Trial) {
		for i, t := range timings {
			x := trial.New(engine, t.ttl, 50, rounds[i%len(rounds)], killScript())
			x.Name, x.Beat, x.Misses = fmt.Sprintf("kill-%s-%v", engine, t), t.beat, t.misses
			trials = append(trials, x)
		}
		return trials
	}
	// disturbed adds trials that share a disturbance. On a busy machine a node may be paused,
	// which G3 excepts and no history shows, so overlapping beliefs are only reported. Below the
	// knee no leader may last long enough for anything to take effect.
	disturbed := func(kind, engine string, timings ...timing) {
		var trials []trial.Trial
		for _, t := range timings {
			trials = append(trials, trial.Trial{
				Name: fmt.Sprintf("%s-%s-%v", kind, engine, t), Engine: engine, TTL: t.ttl, Beat: t.beat, Misses: t.misses, Nodes: 3, Rate: 20, Rounds: 1,
				For: experiment.Pick(size, 2*s, 10*time.Minute), Patience: 2 * s,
				Pass: []string{"token-order", "fence", "sequence", "linearizable", "ledger", "evidence", "history"}, Told: []string{"one-believer", "no-zombie", "recovery", "once"},
				Play: trial.DisturbedScript,
			})
		}
		all = append(all, trial.Together(kind, trials...)...)
	}
	if size == experiment.Quick {
		all = trial.Together("", append(kills(trial.Etcd, []int{1}, ttls(2*s, 3*s)...), kills(trial.Raft, []int{1}, ttls(s)...)...)...)
		disturbed(disturb.CPU, trial.Etcd, ttls(2*s, 3*s)...)
		disturbed(disturb.GC, trial.Etcd, ttls(2*s)...)
		disturbed(disturb.Disk, trial.Raft, ttls(s)...)
		return all
	}
	all = trial.Together("", kills(trial.Etcd, []int{10, 10, 5, 3}, ttls(2*s, 3*s, 10*s, 30*s)...)...)
	// A TTL of 8 s allows these: misses × beat stays within the trust of a keep-alive, 7.64 s.
	all = append(all, trial.Together("", kills(trial.Etcd, []int{5}, timing{8 * s, s, 3}, timing{8 * s, s, 7}, timing{8 * s, 2 * s, 2}, timing{8 * s, 2 * s, 3}, timing{8 * s, 2500 * ms, 2}, timing{8 * s, 2500 * ms, 3})...)...)
	// An election timeout below 400 ms does not keep a leader long enough to kill it.
	all = append(all, trial.Together("", kills(trial.Raft, []int{10, 10, 5, 3}, ttls(400*ms, s, 3*s, 10*s)...)...)...)
	for _, kind := range []string{disturb.CPU, disturb.GC, disturb.Disk} {
		disturbed(kind, trial.Etcd, append(ttls(2*s, 3*s, 8*s, 10*s, 30*s), timing{8 * s, s, 7}, timing{8 * s, 2500 * ms, 3})...)
	}
	for _, kind := range []string{disturb.GC, disturb.Disk} {
		disturbed(kind, trial.Raft, ttls(20*ms, 100*ms, 400*ms, s, 3*s, 10*s)...)
	}
	return all
}

// killedOnly returns the trials in which leaders were killed, with or without a beat.
func killedOnly(all []trial.Outcome, beats bool) (some []trial.Outcome) {
	for _, o := range all {
		if o.Disturbed == "" && (o.Beat != 0) == beats {
			some = append(some, o)
		}
	}
	return some
}

// enginesOf returns the engines of trials, in order.
func enginesOf(all []trial.Outcome) (engines []string) {
	for _, o := range all {
		if !slices.Contains(engines, o.Engine) {
			engines = append(engines, o.Engine)
		}
	}
	return engines
}

// falseFailovers counts the terms that began while nobody had crashed, by how the term before
// ended: from the beginning of the disturbance until its effects are over. A leader that was
// lost and not replaced counts as one.
func falseFailovers(o trial.Outcome) (n int, causes map[string]int) {
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

// kneeOf returns the smallest TTL from which on there were no false failovers; 0: there is
// none.
func kneeOf(counts map[time.Duration]int) (knee time.Duration) {
	for _, ttl := range slices.Backward(slices.Sorted(maps.Keys(counts))) {
		if counts[ttl] > 0 {
			break
		}
		knee = ttl
	}
	return knee
}

// objective is how long there may be no leader in a month of 30 days.
type objective struct {
	availability float64
	crashes      int
}

const month = 30 * 24 * time.Hour

// ours is the objective that the TTL is recommended for.
func ours() objective { return objective{availability: 0.99995, crashes: 4} }

// budget returns how long there may be no leader: per month, and after each crash.
func (o objective) budget() (all, crash time.Duration) {
	all = time.Duration((1 - o.availability) * float64(month)).Round(time.Millisecond)
	return all, all / time.Duration(o.crashes)
}

// serves returns the availability if every crash costs a failover, and whether it meets the
// objective.
func (o objective) serves(failover time.Duration) (availability float64, enough bool) {
	_, crash := o.budget()
	return 1 - float64(o.crashes)*failover.Seconds()/month.Seconds(), failover <= crash
}

// recommend returns the smallest TTL of at least twice the knee whose failovers meet the
// objective: load may be twice as bad as here. If none does, it returns one of at least the
// knee; 0: none meets it.
func recommend(o objective, ttls []time.Duration, knee time.Duration, failover func(time.Duration) time.Duration) time.Duration {
	for _, least := range []time.Duration{2 * knee, knee} {
		for _, t := range slices.Sorted(slices.Values(ttls)) {
			if _, enough := o.serves(failover(t)); t >= least && enough && knee > 0 {
				return t
			}
		}
	}
	return 0
}

// cost is what a crash costs: times × TTL, and the most that was measured above that.
type cost struct {
	times, more time.Duration
	n           int // measured
}

func (c cost) failover(ttl time.Duration) time.Duration { return c.times*ttl + c.more }

// costOf measures. A Raft follower waits for one to two election timeouts.
func costOf(all []trial.Outcome, engine string) cost {
	c := cost{times: 1}
	if engine == trial.Raft {
		c.times = 2
	}
	for _, o := range all {
		if w, _ := o.Failovers(); o.Engine == engine && len(w) > 0 {
			c.more = max(c.more, w.At(1)-c.times*o.TTL)
			c.n += len(w)
		}
	}
	return c
}

func judgeSweep(j measure.Judge, all []trial.Outcome) {
	const failover = "failover: last write of the old leader to the first of the new, of those that the ledger acknowledged; the fleets of all timings are killed on one machine at the same time, experiment 1 has a machine for each"
	j.Table(failover, "trial", "n", "p50", "p95", "max", "p50 less the TTL", "max less the TTL")
	for _, o := range append(killedOnly(all, false), killedOnly(all, true)...) {
		w, _ := o.Failovers()
		bar := o.TTL + 2*time.Second
		if o.Engine == trial.Raft {
			bar = o.Report.Run.CrashBound(0) + time.Second
		}
		j.Below(o.Name+": failover, write to write", w, bar, o.Trial.Rounds)
		j.Series(failover, o.Name, w, w.At(0.5)-o.TTL, w.At(1)-o.TTL)
	}
	t := j.Table("false failovers: changes of leader while nobody crashed; a leader that was lost and not replaced counts as one", "trial", "for", "false", "how the terms before them ended", "what shows the disturbance")
	for _, o := range all {
		if o.Disturbed == "" {
			continue
		}
		n, causes := falseFailovers(o)
		var words []string
		for _, c := range slices.Sorted(maps.Keys(causes)) {
			words = append(words, fmt.Sprintf("%s %d", cmp.Or(c, "missing"), causes[c]))
		}
		evidence := ""
		for _, f := range o.Report.Faults {
			evidence = f.Evidence
		}
		t.Add(o.Name, o.For.String(), n, strings.Join(words, ", "), evidence)
	}
	for _, engine := range enginesOf(all) {
		counts := map[time.Duration]int{}
		long := false // a few seconds of load prove nothing about TTLs
		for _, o := range all {
			if o.Disturbed != "" && o.Engine == engine && o.Beat == 0 {
				n, _ := falseFailovers(o)
				counts[o.TTL] += n
				long = long || o.For >= time.Minute
			}
		}
		judgeObjective(j, ours(), engine, counts, costOf(all, engine), long)
	}
}

// judgeObjective shows what each TTL serves and, if judged, requires a knee and a TTL above
// it that meets the objective.
func judgeObjective(j measure.Judge, o objective, engine string, counts map[time.Duration]int, c cost, judged bool) {
	all, crash := o.budget()
	knee, ttls := kneeOf(counts), slices.Sorted(maps.Keys(counts))
	best := recommend(o, ttls, knee, c.failover)
	t := j.Table(fmt.Sprintf("%s: %.3f %% of 30 days leaves %.1f s; %d crashes a month: %.1f s each. A failover is %d × TTL and at most %s (slowest of %d, several fleets on one machine). The longest TTL that serves: %.1f s",
		engine, 100*o.availability, all.Seconds(), o.crashes, crash.Seconds(), int64(c.times), measure.MS(c.more), c.n, ((crash-c.more)/c.times).Seconds()),
		"TTL", "a crash costs", "a month", "availability", "serves", "false failovers", "")
	for _, ttl := range ttls {
		a, enough := o.serves(c.failover(ttl))
		word := ""
		switch {
		case ttl == best && ttl < 2*knee:
			word = "recommended: none of twice the knee serves"
		case ttl == best:
			word = "recommended: twice the knee or more"
		case ttl == knee:
			word = "the knee"
		}
		t.Add(ttl.String(), fmt.Sprintf("%.2f s", c.failover(ttl).Seconds()), fmt.Sprintf("%.1f s", float64(o.crashes)*c.failover(ttl).Seconds()), fmt.Sprintf("%.4f %%", 100*a), enough, counts[ttl], word)
	}
	if !judged {
		return
	}
	kneeWord, bestWord := "none", "none"
	if knee > 0 {
		kneeWord = knee.String()
	}
	if best > 0 {
		a, _ := o.serves(c.failover(best))
		bestWord = fmt.Sprintf("%v: %.4f %%", best, 100*a)
	}
	j.Bar(engine+": the knee: the smallest TTL without a false failover", kneeWord, "there is one", knee > 0)
	j.Bar(fmt.Sprintf("%s: a TTL at or above the knee that serves %.3f %%", engine, 100*o.availability), bestWord, fmt.Sprintf("failover <= %.1f s", crash.Seconds()), best > 0 && c.n > 0)
}

func drawKnee(all []trial.Outcome, engine, note string) plot.Knee {
	k := plot.Knee{Note: note}
	for _, o := range all {
		if o.Disturbed == "" || o.Engine != engine || o.Beat != 0 {
			continue
		}
		load := engine + ", " + o.Disturbed
		i := slices.IndexFunc(k.Series, func(s plot.KneeSeries) bool { return s.Load == load })
		if i < 0 {
			i = len(k.Series)
			k.Series = append(k.Series, plot.KneeSeries{Load: load})
		}
		n, _ := falseFailovers(o)
		k.Over = o.For
		k.Series[i].At = append(k.Series[i].At, plot.KneePoint{TTL: o.TTL, False: n})
	}
	return k
}
