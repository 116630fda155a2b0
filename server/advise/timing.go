package advise

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/store"
)

// Goals are the requirements on timings, and the conditions that they must cope with.
type Goals struct {
	RTO       time.Duration // how long a crash may leave a group without a leader; 0: any time
	Pause     time.Duration // longest pause of a process; 0: unknown
	RoundTrip time.Duration // slow round trip to the store
	Engine    store.Caps    // the zero value has no limits
}

// granted returns the TTL that the engine grants for a requested one.
func granted(c store.Caps, ttl time.Duration) time.Duration {
	ttl = max(ttl, c.MinTTL)
	if c.Step > 0 {
		ttl = (ttl + c.Step - 1) / c.Step * c.Step
	}
	return ttl
}

// Lease explains timings on a lease engine. Fields of t that are zero get their defaults.
func Lease(t lease.Timing, g Goals) (lease.Explanation, []Finding) {
	var out findings
	whole := t.Resolve()
	e := t.Explain(g.assume())
	if out.rules(whole.Validate(), func() string { return suggestFix(t) }) {
		return e, out
	}
	out.add(OK, "timing", "", "all rules hold: a warning after %d keep-alives of %v without an answer, the end of the term after %v", whole.Misses, whole.Beat, round(e.Trust-whole.Grace))
	out.engine(whole, g.Engine)
	out.pause(t, e, g)
	out.rto(t, e, g)
	return e, out
}

func (g Goals) assume() lease.Assume {
	a := lease.Assume{RoundTrip: g.RoundTrip}
	if g.Pause > 0 {
		a.Pauses = []lease.Pause{{Length: g.Pause, PerDay: 1}}
	}
	return a
}

// rules adds a finding for each rule in a validation error, and the fix to the last one.
func (f *findings) rules(err error, fix func() string) (broken bool) {
	if err == nil {
		return false
	}
	errs := []error{err}
	var many interface{ Unwrap() []error }
	if errors.As(err, &many) {
		errs = many.Unwrap()
	}
	for _, err := range errs {
		text := err.Error()
		var argument *store.ArgumentError
		var config *raft.ConfigError
		if errors.As(err, &argument) {
			text = argument.Rule
		} else if errors.As(err, &config) {
			text = config.Rule
		}
		f.add(Broken, "timing", "", "%s", text)
	}
	(*f)[len(*f)-1].Fix = fix()
	return true
}

func (f *findings) engine(t lease.Timing, c store.Caps) {
	if c.Engine == "" {
		return
	}
	got := granted(c, t.TTL)
	switch {
	case t.TTL < c.MinTTL:
		f.add(Broken, "engine", fmt.Sprintf("--ttl=%v, or an engine with a shorter election timeout (or --backend=raft)", got),
			"TTL = %v must be at least %v: %s grants no shorter one, so a failover takes %v", t.TTL, c.MinTTL, c.Engine, got)
	case got != t.TTL:
		f.add(Warning, "engine", fmt.Sprintf("--ttl=%v", got), "TTL = %v is granted as %v: %s rounds up to multiples of %v", t.TTL, got, c.Engine, c.Step)
	default:
		f.add(OK, "engine", "", "%s grants a TTL of %v (at least %v); that a session expired shows up to %v later", c.Engine, t.TTL, c.MinTTL, c.Late(t.TTL))
	}
	if c.Loses == "" {
		f.add(OK, "durability", "", "%s keeps what it acknowledged, unless it is restored from a backup", c.Engine)
		return
	}
	f.add(Warning, "durability", "fence every sink, and raise the epoch after a loss: see docs/engines.md", "%s can lose what it acknowledged: %s", c.Engine, c.Loses)
}

// failover returns the bounds on a failover, with the delay of the engine.
func failover(e lease.Explanation, g Goals) (usual, worst time.Duration) {
	late := g.Engine.Late(e.Timing.TTL)
	return e.Failover + late, e.WorstFailover + late
}

func (f *findings) pause(t lease.Timing, e lease.Explanation, g Goals) {
	if g.Pause == 0 {
		return
	}
	if e.PauseTolerated >= g.Pause {
		f.add(OK, "pause", "", "a leader survives pauses of up to %v; the longest is %v", round(e.PauseTolerated), g.Pause)
		return
	}
	fix := "no TTL is long enough; find out what stops the process"
	if ttls := ttlsThat(t, g, func(e lease.Explanation) bool { return e.PauseTolerated >= g.Pause }); len(ttls) > 0 {
		fix = fmt.Sprintf("--ttl=%v, or fewer and shorter pauses (one such pause per day causes %.2g false failovers per month)", ttls[0], e.FalseFailoversPerMonth)
	}
	f.add(Broken, "pause", fix, "the longest pause = %v must be at most trust − grace − beat − round trip = %v: a slow leader would lose its term", g.Pause, round(e.PauseTolerated))
}

func (f *findings) rto(t lease.Timing, e lease.Explanation, g Goals) {
	if g.RTO == 0 {
		return
	}
	usual, worst := failover(e, g)
	if worst <= g.RTO {
		f.add(OK, "rto", "", "after a crash another node leads within %v, at worst %v; the RTO is %v", round(usual), round(worst), g.RTO)
		return
	}
	within := func(e lease.Explanation) bool { _, worst := failover(e, g); return worst <= g.RTO }
	fix := "no TTL of this engine is short enough; --backend=raft fails over in about 1.2 × its heartbeat"
	if ttls := ttlsThat(t, g, within); len(ttls) > 0 {
		ttl := ttls[len(ttls)-1]
		fix = fmt.Sprintf("--ttl=%v", ttl)
		if tolerated := withTTL(t, ttl).Explain(g.assume()).PauseTolerated; tolerated < g.Pause {
			fix += fmt.Sprintf(" meets the RTO, but survives pauses of %v only; shorten the pauses, or allow more time", round(tolerated))
		}
	}
	level, says := Broken, "after a crash another node leads within %v (at worst %v), which must be at most the RTO = %v: TTL·(1+drift) + 3 round trips + %v of the engine"
	if usual <= g.RTO {
		level, says = Warning, "after a crash another node leads within %v, but %v if one candidate fails to act and one call hangs, which is more than the RTO = %v (the engine adds %v)"
	}
	f.add(level, "rto", fix, says, round(usual), round(worst), g.RTO, g.Engine.Late(e.Timing.TTL))
}
