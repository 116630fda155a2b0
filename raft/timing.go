package raft

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Timing has the intervals and timeouts of a node. A zero field is derived from Heartbeat.
// A node accepts a leader only if the leader's Heartbeat is no longer than its own, so a
// fleet can change it one node at a time and keeps its guarantees.
type Timing struct {
	// Heartbeat is how long a follower is patient: for this long after a message from its
	// leader it votes for nobody else. A leader sends a heartbeat after a tenth to a fifth
	// of it. From 20 ms to 1 min. Default 1 s.
	Heartbeat time.Duration
	// Election is how long a candidate waits for votes before it tries again, and
	// how long a transfer may take. At least Heartbeat, which is the default.
	Election time.Duration
	// LeaderLease is how long a Raft leader without a quorum remains Raft leader. At most
	// Heartbeat. Default half of it. It does not affect trust, which is computed from
	// Heartbeat.
	LeaderLease time.Duration
	// Commit is how soon an idle leader tells its followers what is committed. At
	// most Heartbeat. Default Heartbeat/20.
	Commit time.Duration
	// Beat is the time between two entries that a leader commits to prove that its
	// disk works: one log append per Beat on every node, while there is a term.
	// Default Heartbeat/2.
	Beat time.Duration
	// Stall is how long a term lasts after its last committed entry was proposed: a leader
	// whose disk hangs still sends heartbeats, but its term ends. At least twice Beat.
	// Default four times Beat, and at least 2 s.
	Stall time.Duration
	// Call bounds one exchange with a peer. Default twice Heartbeat, and at least
	// 500 ms.
	Call time.Duration
	// Drift is the largest difference of rate between the clocks of two nodes, as
	// a fraction below 0.5. Trust is shortened by it. Default 0.02; for perfect clocks
	// use a very small number, because 0 is the default.
	Drift float64
	// Margin also shortens trust. Less than half of Heartbeat. Default Heartbeat/20. It can
	// be small: a follower measures its patience on the same kind of clock and begins later
	// than the leader, so only drift must be covered.
	Margin time.Duration
}

const (
	minHeartbeat = 20 * time.Millisecond
	maxHeartbeat = time.Minute
)

// Default suits nodes in one region: a failover takes a little more than one to two seconds,
// and a pause of half a second causes none.
func Default() Timing {
	return Timing{
		Heartbeat:   time.Second,            // garbage collection and busy neighbours cause no failover
		LeaderLease: 750 * time.Millisecond, // shorter than trust, so that Raft knows before the term ends
	}.Resolve()
}

// LAN suits nodes in one zone that would rather fail over too often than late: a
// crash costs about half a second.
func LAN() Timing {
	return Timing{
		Heartbeat:   400 * time.Millisecond, // at 100 ms the stalls of a cloud disk alone changed leaders, at 350 ms four busy processes per core did, once in ten minutes
		Election:    400 * time.Millisecond, // a split vote costs no more than the first try
		LeaderLease: 350 * time.Millisecond, // four heartbeats may be lost, and still shorter than trust
		Commit:      20 * time.Millisecond,  // a new leader's first entry waits for this at most
		Beat:        250 * time.Millisecond, // four appends a second
		Stall:       2 * time.Second,        // cloud disks hang for a second now and then, and recover
	}.Resolve()
}

// WAN suits nodes in several regions.
func WAN() Timing {
	return Timing{
		Heartbeat:   3 * time.Second,        // twenty round trips around the world
		LeaderLease: 2 * time.Second,        // three heartbeats in a row may be lost
		Commit:      100 * time.Millisecond, // less than a round trip
		Beat:        2 * time.Second,        // an append every two seconds is no load
		Stall:       10 * time.Second,       // a route that flaps settles within it
	}.Resolve()
}

// Resolve returns a copy with defaults in the fields that are zero. It does not change the
// others; Validate checks them.
func (t Timing) Resolve() Timing {
	t.Heartbeat = cmp.Or(t.Heartbeat, time.Second)
	t.Election = cmp.Or(t.Election, t.Heartbeat)
	t.LeaderLease = cmp.Or(t.LeaderLease, t.Heartbeat/2)
	t.Commit = cmp.Or(t.Commit, max(time.Millisecond, t.Heartbeat/20))
	t.Beat = cmp.Or(t.Beat, t.Heartbeat/2)
	t.Stall = cmp.Or(t.Stall, max(2*time.Second, 4*t.Beat))
	t.Call = cmp.Or(t.Call, max(500*time.Millisecond, 2*t.Heartbeat))
	t.Margin = cmp.Or(t.Margin, t.Heartbeat/20)
	t.Drift = cmp.Or(t.Drift, 0.02)
	return t
}

// Validate returns a ConfigError for each rule that a complete Timing breaks,
// joined, with the numbers.
func (t Timing) Validate() error {
	var broken []error
	rule := func(holds bool, format string, args ...any) {
		if !holds {
			broken = append(broken, &ConfigError{Field: "timing", Rule: fmt.Sprintf(format, args...)})
		}
	}
	rule(t.Heartbeat >= minHeartbeat && t.Heartbeat <= maxHeartbeat, "Heartbeat = %v must be from %v to %v", t.Heartbeat, minHeartbeat, maxHeartbeat)
	rule(t.Drift >= 0 && t.Drift < 0.5, "Drift = %v must be from 0 to below 0.5: it is a fraction, 0.02 is 2 %%", t.Drift)
	rule(t.Margin >= 0, "Margin = %v must not be negative", t.Margin)
	rule(t.Beat > 0, "Beat = %v must be positive", t.Beat)
	rule(t.Call > 0, "Call = %v must be positive", t.Call)
	if len(broken) > 0 {
		return errors.Join(broken...) // the other rules are computed from these fields
	}
	rule(t.Election >= t.Heartbeat, "Election = %v must not be below Heartbeat = %v: a candidate would give up before its voters may vote", t.Election, t.Heartbeat)
	rule(t.LeaderLease >= 5*time.Millisecond && t.LeaderLease <= t.Heartbeat, "LeaderLease = %v must be from 5ms to Heartbeat = %v", t.LeaderLease, t.Heartbeat)
	rule(t.Commit >= time.Millisecond && t.Commit <= t.Heartbeat, "Commit = %v must be from 1ms to Heartbeat = %v", t.Commit, t.Heartbeat)
	rule(t.Stall >= 2*t.Beat, "Stall = %v must be at least 2 × Beat = %v: one slow append would end the term", t.Stall, 2*t.Beat)
	rule(t.Margin < t.Heartbeat/2, "Margin = %v must be less than half of Heartbeat = %v", t.Margin, t.Heartbeat)
	rule(t.window() > 2*t.Heartbeat/5, "Heartbeat·(1−Drift) − Margin = %v must be more than two heartbeats, which take up to %v: one lost message would end the term", t.window().Round(time.Microsecond), 2*t.Heartbeat/5)
	return errors.Join(broken...)
}

// window is the trust that one heartbeat gives, counted from its sending.
func (t Timing) window() time.Duration {
	return time.Duration(float64(t.Heartbeat)*(1-t.Drift)) - t.Margin
}
