package advise

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/lease"
)

// Wish is what is wanted of timings, and what the machines are like.
type Wish struct {
	// RTO is how long a crash may leave a group without a leader. 0: not said.
	RTO time.Duration
	// Pause is the longest that a process sees. 0: not known.
	Pause time.Duration
	// RoundTrip is how long the store takes to answer, on a bad day.
	RoundTrip time.Duration
	// Engine is what the engine adds.
	Engine Engine
}

// Engine is how an engine counts.
type Engine struct {
	Name string
	// MinTTL is the shortest TTL that it grants, Step what it rounds up to.
	MinTTL, Step time.Duration
	// Scan is how late it may notice that a session has run out.
	Scan time.Duration
}

// Etcd is etcd with its own defaults.
func Etcd() Engine {
	return Engine{Name: "etcd", MinTTL: 2 * time.Second, Step: time.Second, Scan: 500 * time.Millisecond}
}

// granted is the TTL that the engine makes of one that is asked for.
func (e Engine) granted(ttl time.Duration) time.Duration {
	ttl = max(ttl, e.MinTTL)
	if e.Step > 0 {
		ttl = (ttl + e.Step - 1) / e.Step * e.Step
	}
	return ttl
}

// Lease says what timings mean on a lease engine, with t as it was given: fields that are
// zero are derived.
func Lease(t lease.Timing, w Wish) (lease.Explanation, []Finding) {
	var out findings
	whole := t.Resolve()
	e := t.Explain(w.assume())
	broken := false
	for _, err := range split(whole.Validate()) {
		broken = true
		out.add(Broken, "timing", "", "%s", rule(err))
	}
	if broken {
		out[len(out)-1].Fix = mend(t)
		return e, out
	}
	out.add(OK, "timing", "", "every relation holds: %d × %v of silence are said aloud, and %v of trust end the term", whole.Misses, whole.Beat, tidy(e.Trust-whole.Grace))
	out.engine(whole, w)
	out.pause(t, e, w)
	out.rto(t, e, w)
	return e, out
}

func (w Wish) assume() lease.Assume {
	a := lease.Assume{RoundTrip: w.RoundTrip}
	if w.Pause > 0 {
		a.Pauses = []lease.Pause{{Length: w.Pause, PerDay: 1}}
	}
	return a
}

func split(err error) []error {
	var many interface{ Unwrap() []error }
	if errors.As(err, &many) {
		return many.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// rule is an error without the package that it comes from.
func rule(err error) string {
	var argument *lease.ArgumentError
	if errors.As(err, &argument) {
		return argument.Rule
	}
	return err.Error()
}

func (f *findings) engine(t lease.Timing, w Wish) {
	got := w.Engine.granted(t.TTL)
	switch {
	case got == t.TTL:
	case t.TTL < w.Engine.MinTTL:
		f.add(Broken, "engine", fmt.Sprintf("--ttl=%v, or an engine with a shorter election timeout (or --backend=raft)", got),
			"TTL = %v must be at least %v: %s grants no less, so a crash would cost %v and not %v", t.TTL, w.Engine.MinTTL, w.Engine.Name, got, t.TTL)
	default:
		f.add(Warning, "engine", fmt.Sprintf("--ttl=%v", got), "TTL = %v is granted as %v: %s counts in steps of %v", t.TTL, got, w.Engine.Name, w.Engine.Step)
	}
}

// failover is the bound on a crash with what the engine adds.
func failover(e lease.Explanation, w Wish) (usual, worst time.Duration) {
	return e.Failover + w.Engine.Scan, e.WorstFailover + w.Engine.Scan
}

func (f *findings) pause(t lease.Timing, e lease.Explanation, w Wish) {
	if w.Pause == 0 {
		return
	}
	if e.PauseTolerated >= w.Pause {
		f.add(OK, "pause", "", "a pause of %v is always survived: up to %v is", w.Pause, tidy(e.PauseTolerated))
		return
	}
	fix := "no TTL survives it: find out what stops the process"
	if ttl, ok := least(t, w, func(e lease.Explanation) bool { return e.PauseTolerated >= w.Pause }); ok {
		fix = fmt.Sprintf("--ttl=%v, or fewer and shorter pauses (%.2g false failovers a month, if there is one such pause a day)", ttl, e.FalseFailoversPerMonth)
	}
	f.add(Broken, "pause", fix, "the longest pause = %v must be at most trust − grace − beat − round trip = %v: a leader that is only slow would lose its term", w.Pause, tidy(e.PauseTolerated))
}

func (f *findings) rto(t lease.Timing, e lease.Explanation, w Wish) {
	if w.RTO == 0 {
		return
	}
	usual, worst := failover(e, w)
	if worst <= w.RTO {
		f.add(OK, "rto", "", "after a crash another leads within %v, at worst %v: less than %v", tidy(usual), tidy(worst), w.RTO)
		return
	}
	within := func(e lease.Explanation) bool { _, worst := failover(e, w); return worst <= w.RTO }
	fix := "no TTL of this engine is short enough: --backend=raft fails over in about 1.2 × its heartbeat"
	if ttl, ok := most(t, w, within); ok {
		fix = fmt.Sprintf("--ttl=%v", ttl)
		if w.Pause > 0 {
			if tolerated := scaled(t, ttl).Explain(w.assume()).PauseTolerated; tolerated < w.Pause {
				fix += fmt.Sprintf(" meets it, but survives pauses of %v only: shorten the pauses, or allow more time", tidy(tolerated))
			}
		}
	}
	level, says := Broken, "another leads after at most %v (at worst %v), which must be at most the RTO = %v: TTL·(1+drift) + 3 round trips + %v of the engine"
	if usual <= w.RTO {
		level, says = Warning, "another leads after at most %v, but %v when one candidate does not act and one call hangs, which is more than the RTO = %v (%v of it the engine's)"
	}
	f.add(level, "rto", fix, says, tidy(usual), tidy(worst), w.RTO, w.Engine.Scan)
}
