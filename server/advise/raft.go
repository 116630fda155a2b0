package advise

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/raft"
)

// RaftMeaning is what the timings of a Raft cluster mean.
type RaftMeaning struct {
	Timing raft.Timing
	// Trust is how long after its sending a heartbeat that a quorum has answered may be
	// believed: Heartbeat·(1−Drift) − Margin.
	Trust time.Duration
	// PauseTolerated is the longest pause that never ends a term: Trust less the time
	// between two heartbeats and a round trip.
	PauseTolerated time.Duration
	// Failover is the time from a crash to the next term when the first that is asked
	// wins: a Heartbeat of patience, a fifth of one until the first looks, and a commit.
	// WorstFailover has a split vote in it.
	Failover, WorstFailover time.Duration
}

// raftCommit is what an elected node needs for the entry that begins its term.
const raftCommit = 100 * time.Millisecond

// Raft says what timings mean for a cluster whose members are the candidates.
func Raft(t raft.Timing, w Wish) (RaftMeaning, []Finding) {
	t = t.Resolve()
	m := RaftMeaning{Timing: t, Trust: time.Duration(float64(t.Heartbeat)*(1-t.Drift)) - t.Margin}
	m.PauseTolerated = max(0, m.Trust-t.Heartbeat/5-w.RoundTrip)
	m.Failover = t.Heartbeat + t.Heartbeat/5 + 3*w.RoundTrip + raftCommit
	m.WorstFailover = m.Failover + 2*t.Election
	var out findings
	broken := split(t.Validate())
	for _, err := range broken {
		out.add(Broken, "timing", "", "%s", raftRule(err))
	}
	if len(broken) > 0 {
		out[len(out)-1].Fix = fmt.Sprintf("leave all but --heartbeat to their defaults; --heartbeat=%v is the default, %v is that of LAN", raft.Default().Heartbeat, raft.LAN().Heartbeat)
		return m, out
	}
	out.add(OK, "timing", "", "every relation holds: %v of patience, %v of trust", t.Heartbeat, tidy(m.Trust))
	if w.Pause > 0 {
		if need := raftHeartbeat(w.Pause + w.RoundTrip); m.PauseTolerated < w.Pause {
			out.add(Broken, "pause", fmt.Sprintf("--heartbeat=%v, or fewer and shorter pauses", need),
				"the longest pause = %v must be at most trust − a heartbeat's interval − round trip = %v: a leader that is only slow, or whose disk is, would lose its term", w.Pause, tidy(m.PauseTolerated))
		} else {
			out.add(OK, "pause", "", "a pause of %v is always survived: up to %v is", w.Pause, tidy(m.PauseTolerated))
		}
	}
	if w.RTO > 0 {
		level, fix := OK, ""
		if m.WorstFailover > w.RTO {
			level, fix = Broken, fmt.Sprintf("--heartbeat=%v", tidy((w.RTO-raftCommit-3*w.RoundTrip)*5/16).Round(10*time.Millisecond))
			if m.Failover <= w.RTO {
				level = Warning
			}
		}
		out.add(level, "rto", fix, "after a crash another leads within about %v, after a split vote %v; the RTO is %v", tidy(m.Failover), tidy(m.WorstFailover), w.RTO)
	}
	return m, out
}

// raftHeartbeat is the patience at which a pause is survived, with the default margin.
func raftHeartbeat(pause time.Duration) time.Duration {
	return (time.Duration(float64(pause)/(1-0.02-0.05-0.2)) + 99*time.Millisecond).Truncate(100 * time.Millisecond)
}

func raftRule(err error) string {
	var wrong *raft.ConfigError
	if errors.As(err, &wrong) {
		return wrong.Rule
	}
	return err.Error()
}

// String is for people: a line per fact.
func (m RaftMeaning) String() string {
	var b strings.Builder
	line := func(name, value, note string) { fmt.Fprintf(&b, "%-26s %-16s %s\n", name, value, note) }
	line("trust", tidy(m.Trust).String(), fmt.Sprintf("from the sending of a heartbeat that a quorum answered: %v less drift and margin", m.Timing.Heartbeat))
	line("pause always survived", tidy(m.PauseTolerated).String(), "of the process, or of its disk")
	line("crash to next leader", "about "+tidy(m.Failover).String(), "patience, a fifth of it until the first looks, and a commit")
	line("", "about "+tidy(m.WorstFailover).String(), "when votes are split")
	line("disk stall survived", m.Timing.Stall.String(), "since the last commit: then the leader gives up")
	return b.String()
}
