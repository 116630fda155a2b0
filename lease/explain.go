package lease

import (
	"fmt"
	"strings"
	"time"
)

// Pause is one kind of pause of a process: caused by its kernel, its hypervisor, its
// garbage collector or an overloaded machine.
type Pause struct {
	Length time.Duration
	PerDay float64
}

// Assume describes the network and the machines, which Explain cannot know.
type Assume struct {
	// RoundTrip is how long a slow answer of the store takes. A value above
	// CallTimeout counts as CallTimeout.
	RoundTrip time.Duration
	// Pauses is a histogram of the pauses of a process.
	Pauses []Pause
}

// Explanation is what a Timing means for users. Its bounds hold for an engine that
// keeps its promises. An engine that looks for expired sessions only from time to
// time adds its own delay to Detection and Failover. Without a quorum nobody is
// elected.
type Explanation struct {
	Timing Timing // complete
	Assume Assume

	// Trust is how long a process may rely on an acknowledged keep-alive, counted from
	// when it was sent: TTL·(1−Drift) − Margin.
	Trust time.Duration

	// PauseTolerated is the longest pause that never ends a term, whenever it
	// begins: Trust − Grace − Beat − RoundTrip. The worst moments are just before a
	// keep-alive is sent (the last one is a Beat old, and the next one needs a
	// RoundTrip) and just before its answer arrives (the last acknowledged one is a
	// Beat and a RoundTrip old). If RoundTrip is longer than Beat, it replaces Beat,
	// because only one keep-alive is in flight at a time.
	PauseTolerated time.Duration

	// FalseFailoversPerMonth is how many terms the pauses end in 30 days without a
	// crash. See endsTerm for the derivation.
	FalseFailoversPerMonth float64

	// DetectionLeast and DetectionMost bound the time from a crash until the store
	// shows the group as vacant, by the engine's clock: TTL − Beat to TTL + RoundTrip.
	// The last keep-alive was sent up to a Beat before the crash and took up to a
	// RoundTrip to arrive.
	DetectionLeast, DetectionMost time.Duration

	// Failover bounds the time from a crash to the next term if every call is answered
	// within RoundTrip and the first in line acts: the last keep-alive arrives
	// (RoundTrip), the TTL passes on the engine's clock (TTL·(1+Drift)), the watch
	// informs the first in line (RoundTrip), and its acquire is answered (RoundTrip).
	Failover time.Duration

	// WorstFailover is Failover if, in addition, the first in line does not act and the
	// second waits one step for it (Step, or the slowest recent commit up to TTL/16),
	// and the second's first acquire gets no answer and is repeated after a backoff
	// (CallTimeout + BackoffMin + BackoffMax). Each further candidate that does not act
	// costs another step.
	WorstFailover time.Duration

	// FailoverProved is Failover if a keeper (package pulse) proves the death: the keeper
	// ends the session, the watch informs the first in line, and its acquire is answered,
	// each in a RoundTrip. The kernel's report and the scheduling of three processes come
	// on top. If the host dies too, or the keeper is gone, Failover applies.
	FailoverProved time.Duration

	// CheckOverlap is how long two processes can both pass Term.Check for one group
	// while their clock rates differ by at most Drift: 0.
	CheckOverlap time.Duration
	// DriftCovered is the largest difference in clock rate that Drift and Margin cover
	// together, if the engine needs nothing of the margin: 1 − Trust/TTL.
	DriftCovered float64
	// CheckOverlapBeyond is how long two processes can both pass Term.Check if the
	// rates differ by one percentage point more than DriftCovered.
	CheckOverlapBeyond time.Duration
	// ContextOverlap is how long a process can act at the same time as its successor if
	// it checks only the context of its term: as long as its longest pause. This also
	// holds for a pause between Term.Check and a write; only a sink refuses that write.
	ContextOverlap time.Duration

	// CallsPerSecond is how often an idle process calls the store, however many groups
	// it leads: one keep-alive a Beat.
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
		FailoverProved: 3 * a.RoundTrip,
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

// endsTerm is the probability that a pause of this length ends a term, if its start
// is uniformly distributed over the beat.
//
// Keep-alives are sent every b = max(Beat, RoundTrip). Let r be the RoundTrip, w =
// Trust − Grace, and s the age of the newest acknowledged keep-alive when the pause
// begins. s is uniform from r to b + r, because an acknowledged keep-alive is r old
// when the answer arrives. If s < b, the process sends the next keep-alive after the
// pause and needs its answer: the term ends if s + length + r ≥ w. If s ≥ b, one is
// in flight and its answer has arrived after the pause: the term ends if s + length
// ≥ w. With the excess over the tolerated pause, x = length − (w − b − r), these are
// the last x of the first case's b − r, and the last x of the second case's r.
func (t Timing) endsTerm(length, r time.Duration) float64 {
	b := max(t.Beat, r)
	x := max(0, length-t.tolerated(r))
	ends := min(x, b-r) + min(x, r)
	return float64(ends) / float64(b)
}

// overlap is how long a leader trusts its lease after the session has expired, if its
// clock is slower than the engine's by the fraction drift: by the engine's clock,
// trust lasts window/(1−drift), and the session lasts TTL.
func (t Timing) overlap(drift float64) time.Duration {
	return max(0, time.Duration(float64(t.window())/(1-drift))-t.TTL)
}

// String returns a table, with a line for each fact.
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
	proved := "milliseconds"
	if e.FailoverProved > 0 {
		proved = "about " + tidy(e.FailoverProved).String()
	}
	line("", proved, "when a keeper proves that the process died; not if its host died")
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
