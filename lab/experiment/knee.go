package experiment

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab/plot"
)

// kneeOf is the smallest TTL from which on nothing was false; false: not even the
// longest.
func kneeOf(counts map[time.Duration]int) (time.Duration, bool) {
	ttls := slices.Sorted(maps.Keys(counts))
	at := len(ttls)
	for at > 0 && counts[ttls[at-1]] == 0 {
		at--
	}
	if at == len(ttls) {
		return 0, false
	}
	return ttls[at], true
}

// objective is how long there may be no leader.
type objective struct {
	availability float64
	month        time.Duration
	crashes      int // in a month
}

// ours is the objective that the TTL is recommended for.
func ours() objective {
	return objective{availability: 0.99995, month: 30 * 24 * time.Hour, crashes: 4}
}

// budget is what a month may cost, and each crash of it.
func (o objective) budget() (month, crash time.Duration) {
	month = time.Duration((1 - o.availability) * float64(o.month)).Round(time.Millisecond)
	return month, month / time.Duration(o.crashes)
}

// serves is the availability of the leader if every crash costs a failover, and whether
// that is enough.
func (o objective) serves(failover time.Duration) (availability float64, enough bool) {
	_, crash := o.budget()
	return 1 - float64(o.crashes)*failover.Seconds()/o.month.Seconds(), failover <= crash
}

// recommend is the smallest TTL of at least twice the knee whose failovers fit the
// objective: load may be twice as bad as it was here. Where twice the knee does not fit,
// the knee itself has to do.
func recommend(o objective, ttls []time.Duration, knee time.Duration, failover func(time.Duration) time.Duration) (time.Duration, bool) {
	for _, least := range []time.Duration{2 * knee, knee} {
		for _, t := range slices.Sorted(slices.Values(ttls)) {
			if _, enough := o.serves(failover(t)); t >= least && enough {
				return t, true
			}
		}
	}
	return 0, false
}

// cost is what a crash costs, by TTL: so many times the TTL, and at most what was ever
// measured above that.
type cost struct {
	times time.Duration
	more  time.Duration
	n     int // measured
}

func (c cost) failover(ttl time.Duration) time.Duration { return c.times*ttl + c.more }

// costOf measures. A Raft follower waits for one to two times its patience.
func costOf(all []Outcome, engine string) cost {
	c := cost{times: 1}
	if engine == raftEngine {
		c.times = 2
	}
	for _, o := range all {
		if w, _ := killed(o); o.Engine == engine && len(w) > 0 {
			c.more = max(c.more, w.at(1)-c.times*o.TTL)
			c.n += len(w)
		}
	}
	return c
}

func judgeSweep(all []Outcome) ([]Threshold, []Table) {
	var bars []Threshold
	var tables []Table
	failovers := Table{Title: "failover: last write of the old leader to the first of the new, of those that the ledger acknowledged; the fleets of all timings are killed on one machine at the same time, experiment 1 has a machine for each", Head: append(seriesHead("trial"), "p50 less the TTL", "max less the TTL")}
	for _, o := range append(killedOnly(all, false), killedOnly(all, true)...) {
		w, _ := killed(o)
		bar := o.TTL + 2*time.Second
		if o.Engine == raftEngine {
			bar = o.Report.Run.CrashBound(0) + time.Second
		}
		bars = append(bars, below(o.Name+": failover, write to write", w, bar, o.Trial.Rounds))
		failovers.Rows = append(failovers.Rows, append(w.row(o.Name), ms(w.at(0.5)-o.TTL), ms(w.at(1)-o.TTL)))
	}
	tables = append(tables, failovers, falseTable(all))
	for _, engine := range []string{etcdEngine, raftEngine} {
		counts := map[time.Duration]int{}
		long := false // a moment of load says nothing about TTLs
		for _, o := range all {
			if o.Disturbed != "" && o.Engine == engine && o.Beat == 0 {
				n, _ := falseFailovers(o)
				counts[o.TTL] += n
				long = long || o.For >= time.Minute
			}
		}
		knee, found := kneeOf(counts)
		t := Threshold{Name: engine + ": the knee: the smallest TTL without a false failover", Value: "none", Bar: "there is one", OK: found}
		if found {
			t.Value = knee.String()
		}
		bar, table := judgeObjective(ours(), engine, counts, knee, costOf(all, engine))
		if tables = append(tables, table); long {
			bars = append(bars, t, bar)
		}
	}
	return bars, tables
}

// judgeObjective is the arithmetic.
func judgeObjective(o objective, engine string, counts map[time.Duration]int, knee time.Duration, c cost) (Threshold, Table) {
	month, crash := o.budget()
	ttls := slices.Sorted(maps.Keys(counts))
	best, found := time.Duration(0), false
	if knee > 0 {
		best, found = recommend(o, ttls, knee, c.failover)
	}
	t := Table{
		Title: fmt.Sprintf("%s: %.3f %% of 30 days leaves %.1f s; %d crashes a month: %.1f s each. A failover is %d × TTL and at most %s (slowest of %d, several fleets on one machine). The longest TTL that serves: %.1f s",
			engine, 100*o.availability, month.Seconds(), o.crashes, crash.Seconds(), int64(c.times), ms(c.more), c.n, ((crash - c.more) / c.times).Seconds()),
		Head: []string{"TTL", "a crash costs", "a month", "availability", "serves", "false failovers", ""},
	}
	for _, ttl := range ttls {
		a, enough := o.serves(c.failover(ttl))
		word := ""
		switch ttl {
		case best:
			word = "recommended: twice the knee or more"
			if ttl < 2*knee {
				word = "recommended: none of twice the knee serves"
			}
		case knee:
			word = "the knee"
		}
		t.Rows = append(t.Rows, []string{
			ttl.String(), fmt.Sprintf("%.2f s", c.failover(ttl).Seconds()), fmt.Sprintf("%.1f s", float64(o.crashes)*c.failover(ttl).Seconds()),
			fmt.Sprintf("%.4f %%", 100*a), fmt.Sprint(enough), fmt.Sprint(counts[ttl]), word,
		})
	}
	bar := Threshold{Name: engine + ": a TTL at or above the knee that serves " + fmt.Sprintf("%.3f %%", 100*o.availability), Value: "none", Bar: fmt.Sprintf("failover <= %.1f s", crash.Seconds()), OK: found && c.n > 0}
	if found {
		a, _ := o.serves(c.failover(best))
		bar.Value = fmt.Sprintf("%v: %.4f %%", best, 100*a)
	}
	return bar, t
}

func falseTable(all []Outcome) Table {
	t := Table{Title: "false failovers: changes of leader while nobody crashed; a leader that was lost and not replaced counts as one", Head: []string{"trial", "for", "false", "how the terms before them ended", "what shows the disturbance"}}
	for _, o := range all {
		if o.Disturbed == "" {
			continue
		}
		n, causes := falseFailovers(o)
		var words []string
		for _, c := range slices.SortedFunc(maps.Keys(causes), cmp.Compare[string]) {
			words = append(words, fmt.Sprintf("%s %d", orNone(c), causes[c]))
		}
		evidence := ""
		for _, f := range o.Report.Faults {
			evidence = f.Evidence
		}
		t.Rows = append(t.Rows, []string{o.Name, o.For.String(), fmt.Sprint(n), strings.Join(words, ", "), evidence})
	}
	return t
}

func drawKnee(all []Outcome, engine, note string) figure {
	k := plot.Knee{Note: note}
	at := map[string]int{}
	for _, o := range all {
		if o.Disturbed == "" || o.Engine != engine || o.Beat != 0 {
			continue
		}
		i, ok := at[o.Disturbed]
		if !ok {
			i = len(k.Series)
			at[o.Disturbed] = i
			k.Series = append(k.Series, plot.KneeSeries{Load: engine + ", " + o.Disturbed})
		}
		n, _ := falseFailovers(o)
		k.Over = o.For
		k.Series[i].At = append(k.Series[i].At, plot.KneePoint{TTL: o.TTL, False: n})
	}
	return k
}
