package advise

import (
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/raft"
)

// RaftExplanation explains the timings of a Raft cluster.
type RaftExplanation struct {
	Timing raft.Timing
	// Trust is how long a leader may act after it sent a heartbeat that a quorum answered:
	// Heartbeat·(1−Drift) − Margin.
	Trust time.Duration
	// PauseTolerated is the longest pause that never ends a term: Trust less the time
	// between two heartbeats and a round trip.
	PauseTolerated time.Duration
	// Failover is the time from a crash to the next term if the first candidate wins: a
	// Heartbeat, a fifth of it until the first follower notices, and a commit.
	// WorstFailover includes a split vote.
	Failover, WorstFailover time.Duration
}

// raftCommit is the time to commit the entry that begins a term.
const raftCommit = 100 * time.Millisecond

// Raft explains timings of a Raft cluster whose members are the candidates.
func Raft(t raft.Timing, g Goals) (RaftExplanation, []Finding) {
	t = t.Resolve()
	m := RaftExplanation{Timing: t, Trust: time.Duration(float64(t.Heartbeat)*(1-t.Drift)) - t.Margin}
	m.PauseTolerated = max(0, m.Trust-t.Heartbeat/5-g.RoundTrip)
	m.Failover = t.Heartbeat + t.Heartbeat/5 + 3*g.RoundTrip + raftCommit
	m.WorstFailover = m.Failover + 2*t.Election
	var out findings
	if out.rules(t.Validate(), func() string {
		return fmt.Sprintf("leave all but --heartbeat at their defaults; the default is --heartbeat=%v, and %v for a LAN", raft.Default().Heartbeat, raft.LAN().Heartbeat)
	}) {
		return m, out
	}
	out.add(OK, "timing", "", "all rules hold: a heartbeat timeout of %v, %v of trust", t.Heartbeat, round(m.Trust))
	if g.Pause > 0 && m.PauseTolerated < g.Pause {
		// The default drift and margin, and a fifth of the heartbeat between two of them.
		need := time.Duration(float64(g.Pause+g.RoundTrip) / (1 - 0.02 - 0.05 - 0.2))
		out.add(Broken, "pause", fmt.Sprintf("--heartbeat=%v, or fewer and shorter pauses", (need+99*time.Millisecond).Truncate(100*time.Millisecond)),
			"the longest pause = %v must be at most trust − heartbeat interval − round trip = %v: a slow leader, or one with a slow disk, would lose its term", g.Pause, round(m.PauseTolerated))
	} else if g.Pause > 0 {
		out.add(OK, "pause", "", "a leader survives pauses of up to %v; the longest is %v", round(m.PauseTolerated), g.Pause)
	}
	if g.RTO > 0 {
		level, fix := OK, ""
		if m.WorstFailover > g.RTO {
			level, fix = Broken, fmt.Sprintf("--heartbeat=%v", round((g.RTO-raftCommit-3*g.RoundTrip)*5/16).Round(10*time.Millisecond))
			if m.Failover <= g.RTO {
				level = Warning
			}
		}
		out.add(level, "rto", fix, "after a crash another node leads within about %v, after a split vote %v; the RTO is %v", round(m.Failover), round(m.WorstFailover), g.RTO)
	}
	return m, out
}

// String returns one line per fact.
func (m RaftExplanation) String() string {
	var b strings.Builder
	line := func(name, value, note string) { fmt.Fprintf(&b, "%-26s %-16s %s\n", name, value, note) }
	line("trust", round(m.Trust).String(), fmt.Sprintf("after a heartbeat was sent that a quorum answered: %v less drift and margin", m.Timing.Heartbeat))
	line("pause always survived", round(m.PauseTolerated).String(), "of the process or of its disk")
	line("crash to next leader", "about "+round(m.Failover).String(), "heartbeat timeout, a fifth of it until a follower notices, and a commit")
	line("", "about "+round(m.WorstFailover).String(), "with a split vote")
	line("disk stall survived", m.Timing.Stall.String(), "since the last commit; then the leader gives up")
	return b.String()
}
