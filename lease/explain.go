package lease

import (
	"fmt"
	"strings"
	"time"
)

// Pause is one kind of pause that a process sees: stopped by its kernel, its
// hypervisor, its garbage collector or a full machine.
type Pause struct {
	Length time.Duration
	PerDay float64
}

// Assume is what Explain cannot know: the network and the machines.
type Assume struct {
	// RoundTrip is how long the store takes to answer, on a bad day. Longer than
	// CallTimeout counts as CallTimeout.
	RoundTrip time.Duration
	// Pauses is a histogram of the pauses that a process sees.
	Pauses []Pause
}

// Explanation is what a Timing means for those who live with it. Its bounds hold
// for an engine that keeps its promises: an engine that looks for expired
// sessions only now and then adds its own delay to Detection and Failover, and
// without a quorum nobody is elected at all.
type Explanation struct {
	// Timing is what is explained, complete.
	Timing Timing
	// Assume is what was assumed.
	Assume Assume

	// Trust is how long after its sending one acknowledged keep-alive may be
	// believed: TTL·(1−Drift) − Margin.
	Trust time.Duration

	// PauseTolerated is the longest pause that never ends a term, at whatever
	// moment it begins: Trust − Grace − Beat − RoundTrip. The worst moments are just
	// before a keep-alive is sent (the last one is a beat old, and the next still
	// has its round trip to go) and just before its answer arrives (the last one
	// that was answered is a beat and a round trip old). A RoundTrip longer than
	// the Beat takes its place: one keep-alive is under way at a time.
	PauseTolerated time.Duration

	// FalseFailoversPerMonth is how many terms the pauses end in 30 days although
	// nothing has crashed. See endsTerm for the derivation.
	FalseFailoversPerMonth float64

	// DetectionLeast and DetectionMost bound the time from a crash to the vacancy
	// at the store, by the engine's clock. The last keep-alive was sent up to a
	// Beat before the crash and arrived up to a RoundTrip after its sending:
	// TTL − Beat to TTL + RoundTrip.
	DetectionLeast, DetectionMost time.Duration

	// Failover bounds the time from a crash to the next term when every call is
	// answered within RoundTrip and the first in line acts: the last keep-alive
	// arrives (RoundTrip), the engine's clock lets the TTL run out
	// (TTL·(1+Drift)), the watch tells the first in line (RoundTrip), and its
	// acquire is answered (RoundTrip).
	Failover time.Duration

	// WorstFailover is Failover when, besides, the first in line does not act and
	// the second waits one step for it (Step, or the slowest recent commit up to
	// TTL/16), and the second's first acquire gets no answer and is repeated after
	// the pause that follows (CallTimeout + BackoffMin + BackoffMax). Each further
	// candidate that does not act costs another step.
	WorstFailover time.Duration

	// CheckOverlap is how long two processes can both pass Term.Check for one
	// group while the difference of their clocks' rates is within Drift: never.
	CheckOverlap time.Duration
	// DriftCovered is the difference of rates at which the margin is used up too,
	// provided that the engine itself needs none of it: 1 − Trust/TTL.
	DriftCovered float64
	// CheckOverlapBeyond is how long two can both pass Term.Check when the rates
	// differ by one per cent more than DriftCovered.
	CheckOverlapBeyond time.Duration
	// ContextOverlap is how long a process can act beside its successor if it looks
	// at the context of its term alone: as long as its longest pause. The same goes
	// for a pause between Term.Check and the write; only a sink refuses that.
	ContextOverlap time.Duration

	// CallsPerSecond is what a process asks of the store while nothing happens,
	// however many groups it leads: one keep-alive a Beat.
	CallsPerSecond float64
}

// Explain says what the timing means, after Resolve.
func (t Timing) Explain(a Assume) Explanation {
	t = t.Resolve()
	a.RoundTrip = min(max(0, a.RoundTrip), t.CallTimeout)
	e := Explanation{
		Timing:         t,
		Assume:         a,
		Trust:          t.window(),
		PauseTolerated: max(0, t.tolerated(a.RoundTrip)),
		DetectionLeast: t.TTL - t.Beat,
		DetectionMost:  t.TTL + a.RoundTrip,
		Failover:       time.Duration(float64(t.TTL)*(1+t.Drift)) + 3*a.RoundTrip,
		CallsPerSecond: 1 / t.Beat.Seconds(),
	}
	e.WorstFailover = e.Failover + max(t.Step, t.TTL/16) + t.CallTimeout + t.BackoffMin + t.BackoffMax
	e.DriftCovered = 1 - e.Trust.Seconds()/t.TTL.Seconds()
	e.CheckOverlapBeyond = t.overlap(e.DriftCovered + 0.01)
	for _, p := range a.Pauses {
		e.ContextOverlap = max(e.ContextOverlap, p.Length)
		e.FalseFailoversPerMonth += 30 * p.PerDay * t.endsTerm(p.Length, a.RoundTrip)
	}
	return e
}

// tolerated is PauseTolerated, which may be negative here.
func (t Timing) tolerated(roundTrip time.Duration) time.Duration {
	return t.window() - t.Grace - max(t.Beat, roundTrip) - roundTrip
}

// endsTerm is the probability that a pause of this length, beginning at a moment
// that is uniform over the beat, ends a term.
//
// Keep-alives go out every b = max(Beat, RoundTrip); let r be the RoundTrip, w
// the Trust less Grace, and s the age of the newest acknowledged keep-alive when
// the pause begins: uniform from r to b + r, since an acknowledgement is r old
// when it arrives. Either (s < b) the next keep-alive is sent on waking and
// must come back: the term ends if s + length + r ≥ w. Or (s ≥ b) one is under
// way, and its answer is waiting on waking: the term ends if s + length ≥ w. In
// terms of the excess over the tolerated pause, x = length − (w − b − r), these
// are the last x of the b − r that the first case spans and the last x of the r
// that the second does.
func (t Timing) endsTerm(length, r time.Duration) float64 {
	b := max(t.Beat, r)
	x := max(0, length-t.tolerated(r))
	ends := min(x, b-r) + min(x, r)
	return float64(ends) / float64(b)
}

// overlap is how long a leader whose clock is slow by the fraction drift against
// the engine's trusts itself after its session has expired: by the engine's
// clock its trust lasts window/(1−drift), and the session TTL.
func (t Timing) overlap(drift float64) time.Duration {
	return max(0, time.Duration(float64(t.window())/(1-drift))-t.TTL)
}

// String is for people: a line per fact.
func (e Explanation) String() string {
	t := e.Timing
	var b strings.Builder
	line := func(name, value, note string) { fmt.Fprintf(&b, "%-26s %-16s %s\n", name, value, note) }
	line("trust", tidy(e.Trust).String(), fmt.Sprintf("from the sending of a keep-alive: TTL %v less %s drift, less %v margin", t.TTL, percent(t.Drift), t.Margin))
	line("pause always survived", tidy(e.PauseTolerated).String(), fmt.Sprintf("with a beat every %v, %v round trip, %v grace", t.Beat, e.Assume.RoundTrip, t.Grace))
	if len(e.Assume.Pauses) > 0 {
		line("false failovers", fmt.Sprintf("%.3g a month", e.FalseFailoversPerMonth), "by the pauses that were given")
	}
	line("crash to vacancy", fmt.Sprintf("%v to %v", tidy(e.DetectionLeast), tidy(e.DetectionMost)), "plus what the engine adds")
	line("crash to next leader", tidy(e.Failover).String(), "at most, when calls are answered and the first in line acts")
	line("", tidy(e.WorstFailover).String(), "at most, when one candidate does not act and one call hangs")
	line("two pass Check", "never", fmt.Sprintf("while clocks drift by %s at most", percent(t.Drift)))
	line("", tidy(e.CheckOverlapBeyond).String(), fmt.Sprintf("at %s, where the margin (good to %s) no longer covers it", percent(e.DriftCovered+0.01), percent(e.DriftCovered)))
	if e.ContextOverlap > 0 {
		line("two act without Check", tidy(e.ContextOverlap).String(), "the longest pause; a sink refuses the stale one")
	} else {
		line("two act without Check", "a pause", "as long as the longest; a sink refuses the stale one")
	}
	line("calls to the store", fmt.Sprintf("%.3g a second", e.CallsPerSecond), "per process, for any number of groups")
	return b.String()
}
