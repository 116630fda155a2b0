package advise_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/server/advise"
	"github.com/tenurehq/tenure/store/etcd"
)

const second = time.Second

func broken(found []advise.Finding) (out []advise.Finding) {
	for _, f := range found {
		if f.Level == advise.Broken {
			out = append(out, f)
		}
	}
	return out
}

// Each of ten bad timings is broken, and the finding has the rule. The fix names a flag,
// and a timing with that one change is not broken.
func TestBadTimings(t *testing.T) {
	for _, tt := range []struct {
		name   string
		timing lease.Timing
		goals  advise.Goals
		rule   string
		fix    string
		fixed  lease.Timing
	}{
		{"three beats outlast trust", lease.Timing{TTL: 3 * second, Beat: second}, advise.Goals{}, "Misses × Beat = 3 × 1s = 3s must be less than", "--beat=750ms", lease.Timing{TTL: 3 * second, Beat: 750 * time.Millisecond}},
		{"too many misses", lease.Timing{TTL: 8 * second, Misses: 9}, advise.Goals{}, "Misses × Beat = 9 × 2s = 18s", "--misses=3", lease.Timing{TTL: 8 * second, Misses: 3}},
		{"a call that may hang for ever", lease.Timing{TTL: 8 * second, CallTimeout: 10 * second}, advise.Goals{}, "Beat + CallTimeout = 2s + 10s = 12s", "--call-timeout=2s", lease.Timing{TTL: 8 * second, CallTimeout: 2 * second}},
		{"grace that eats trust", lease.Timing{TTL: 8 * second, Grace: 7900 * time.Millisecond}, advise.Goals{}, "Grace = 7.9s must be less than the trust", "--grace=1s", lease.Timing{TTL: 8 * second, Grace: second}},
		{"a margin that eats the TTL", lease.Timing{TTL: 60 * time.Millisecond}, advise.Goals{}, "Margin = 50ms must be less than half of TTL = 60ms", "--margin=6ms", lease.Timing{TTL: 60 * time.Millisecond, Margin: 6 * time.Millisecond}},
		{"drift in per cent", lease.Timing{TTL: 8 * second, Drift: 2}, advise.Goals{}, "Drift = 2 must be from 0 to below 0.5", "--drift=0.02", lease.Timing{TTL: 8 * second}},
		{"a step longer than the TTL", lease.Timing{TTL: 8 * second, Step: time.Minute}, advise.Goals{}, "Step = 1m0s must not be above TTL = 8s", "--step=20ms", lease.Timing{TTL: 8 * second}},
		{"shorter than the engine grants", lease.Timing{TTL: second}, advise.Goals{Engine: etcd.Caps()}, "TTL = 1s must be at least 2s", "--ttl=2s", lease.Timing{TTL: 2 * second}},
		{"pauses longer than trust", lease.Timing{TTL: 3 * second}, advise.Goals{Engine: etcd.Caps(), Pause: 4 * second}, "= 2.115s", "--ttl=6s", lease.Timing{TTL: 6 * second}},
		{"slower than allowed", lease.Timing{TTL: 30 * second}, advise.Goals{Engine: etcd.Caps(), RTO: 10 * second}, "RTO = 10s", "--ttl=5s", lease.Timing{TTL: 5 * second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, found := advise.Lease(tt.timing, tt.goals)
			bad := broken(found)
			if len(bad) == 0 || advise.Worst(found) != advise.Broken {
				t.Fatalf("it is called sound: %+v", found)
			}
			var says, fixes []string
			for _, f := range bad {
				says, fixes = append(says, f.Says), append(fixes, f.Fix)
			}
			if s := strings.Join(says, "\n"); !strings.Contains(s, tt.rule) {
				t.Errorf("it says %q, not %q", s, tt.rule)
			}
			if s := strings.Join(fixes, "\n"); !strings.Contains(s, tt.fix) {
				t.Errorf("the fix is %q, not %q", s, tt.fix)
			}
			if _, found := advise.Lease(tt.fixed, tt.goals); len(broken(found)) > 0 {
				t.Errorf("the fix does not help: %+v", broken(found))
			}
		})
	}
}

// If the RTO needs a shorter TTL than the pauses allow, the fix names the pauses that the
// shorter one survives.
func TestContradiction(t *testing.T) {
	_, found := advise.Lease(lease.Timing{TTL: 8 * second}, advise.Goals{Engine: etcd.Caps(), RTO: 5 * second, Pause: 10 * second})
	bad := broken(found)
	if len(bad) != 2 || !strings.Contains(bad[0].Fix, "--ttl=1") || !strings.Contains(bad[1].Fix, "pauses of 1.4") {
		t.Errorf("%+v", bad)
	}
}

// The presets hold on etcd, for the pauses that they are made for, and can be drawn.
func TestPresets(t *testing.T) {
	for name, p := range map[string]lease.Timing{"default": lease.Default(), "lan": lease.LAN(), "wan": lease.WAN(), "cautious": lease.Cautious()} {
		g := advise.Goals{Engine: etcd.Caps(), Pause: p.TTL / 3, RTO: 2 * p.TTL, RoundTrip: 5 * time.Millisecond}
		e, found := advise.Lease(p, g)
		if advise.Worst(found) != advise.OK {
			t.Errorf("%s: %+v", name, found)
		}
		drawing := advise.Timeline(e, g)
		for line := range strings.Lines(drawing) {
			if len(line) > 110 {
				t.Errorf("%s: a line of %d characters: %s", name, len(line), line)
			}
		}
		if !strings.Contains(drawing, "next leader") || !strings.Contains(drawing, "#|") {
			t.Errorf("%s: %s", name, drawing)
		}
	}
}

// Raft has its own rules and fixes.
func TestBadRaftTimings(t *testing.T) {
	for _, tt := range []struct {
		name   string
		timing raft.Timing
		goals  advise.Goals
		rule   string
		fix    string
	}{
		{"no patience", raft.Timing{Heartbeat: time.Millisecond}, advise.Goals{}, "Heartbeat = 1ms must be from 20ms", "--heartbeat=1s"},
		{"gives up before its voters may vote", raft.Timing{Heartbeat: second, Election: 500 * time.Millisecond}, advise.Goals{}, "Election = 500ms must not be below Heartbeat = 1s", "defaults"},
		{"pauses", raft.LAN(), advise.Goals{Pause: second}, "the longest pause = 1s", "--heartbeat=1.4s"},
		{"slow", raft.WAN(), advise.Goals{RTO: 2 * second}, "the RTO is 2s", "--heartbeat=590ms"},
	} {
		_, found := advise.Raft(tt.timing, tt.goals)
		bad := broken(found)
		if len(bad) == 0 || !strings.Contains(bad[0].Says, tt.rule) || !strings.Contains(bad[len(bad)-1].Fix, tt.fix) {
			t.Errorf("%s: %+v", tt.name, bad)
		}
	}
	// The fix is enough.
	if _, found := advise.Raft(raft.Timing{Heartbeat: 1400 * time.Millisecond}, advise.Goals{Pause: second}); advise.Worst(found) != advise.OK {
		t.Errorf("%+v", found)
	}
}
