package advise_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/server/advise"
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

// Each of ten bad timings is called broken, with the relation that it breaks; the fix
// names a flag, and a timing with that one change is no longer broken by it.
func TestBadTimings(t *testing.T) {
	for _, tt := range []struct {
		name     string
		timing   lease.Timing
		wish     advise.Wish
		relation string
		fix      string
		mended   lease.Timing
	}{
		{"three beats outlast trust", lease.Timing{TTL: 3 * second, Beat: second}, advise.Wish{}, "Misses × Beat = 3 × 1s = 3s must be less than", "--beat=750ms", lease.Timing{TTL: 3 * second, Beat: 750 * time.Millisecond}},
		{"too many misses", lease.Timing{TTL: 8 * second, Misses: 9}, advise.Wish{}, "Misses × Beat = 9 × 2s = 18s", "--misses=3", lease.Timing{TTL: 8 * second, Misses: 3}},
		{"a call that may hang for ever", lease.Timing{TTL: 8 * second, CallTimeout: 10 * second}, advise.Wish{}, "Beat + CallTimeout = 2s + 10s = 12s", "--call-timeout=2s", lease.Timing{TTL: 8 * second, CallTimeout: 2 * second}},
		{"grace that eats trust", lease.Timing{TTL: 8 * second, Grace: 7900 * time.Millisecond}, advise.Wish{}, "Grace = 7.9s must be less than the trust", "--grace=1s", lease.Timing{TTL: 8 * second, Grace: second}},
		{"a margin that eats the TTL", lease.Timing{TTL: 60 * time.Millisecond}, advise.Wish{}, "Margin = 50ms must be less than half of TTL = 60ms", "--margin=6ms", lease.Timing{TTL: 60 * time.Millisecond, Margin: 6 * time.Millisecond}},
		{"drift in per cent", lease.Timing{TTL: 8 * second, Drift: 2}, advise.Wish{}, "Drift = 2 must be from 0 to below 0.5", "--drift=0.02", lease.Timing{TTL: 8 * second}},
		{"a step longer than the TTL", lease.Timing{TTL: 8 * second, Step: time.Minute}, advise.Wish{}, "Step = 1m0s must not be above TTL = 8s", "--step=20ms", lease.Timing{TTL: 8 * second}},
		{"shorter than the engine grants", lease.Timing{TTL: second}, advise.Wish{Engine: advise.Etcd()}, "TTL = 1s must be at least 2s: etcd grants no less", "--ttl=2s", lease.Timing{TTL: 2 * second}},
		{"pauses longer than trust", lease.Timing{TTL: 3 * second}, advise.Wish{Engine: advise.Etcd(), Pause: 4 * second}, "the longest pause = 4s must be at most trust − grace − beat − round trip = 2.115s", "--ttl=6s", lease.Timing{TTL: 6 * second}},
		{"slower than allowed", lease.Timing{TTL: 30 * second}, advise.Wish{Engine: advise.Etcd(), RTO: 10 * second}, "must be at most the RTO = 10s", "--ttl=5s", lease.Timing{TTL: 5 * second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, found := advise.Lease(tt.timing, tt.wish)
			bad := broken(found)
			if len(bad) == 0 || advise.Worst(found) != advise.Broken {
				t.Fatalf("it is called sound: %+v", found)
			}
			var says, fixes []string
			for _, f := range bad {
				says, fixes = append(says, f.Says), append(fixes, f.Fix)
			}
			if s := strings.Join(says, "\n"); !strings.Contains(s, tt.relation) {
				t.Errorf("it says %q, not %q", s, tt.relation)
			}
			if s := strings.Join(fixes, "\n"); !strings.Contains(s, tt.fix) {
				t.Errorf("the fix is %q, not %q", s, tt.fix)
			}
			if _, found := advise.Lease(tt.mended, tt.wish); len(broken(found)) > 0 {
				t.Errorf("the fix does not help: %+v", broken(found))
			}
		})
	}
}

// A TTL cannot be both: where the RTO wants a shorter one than the pauses allow, the
// advice says what the shorter one would cost.
func TestContradiction(t *testing.T) {
	_, found := advise.Lease(lease.Timing{TTL: 8 * second}, advise.Wish{Engine: advise.Etcd(), RTO: 5 * second, Pause: 10 * second})
	bad := broken(found)
	if len(bad) != 2 || !strings.Contains(bad[0].Fix, "--ttl=1") || !strings.Contains(bad[1].Fix, "meets it, but survives pauses of") {
		t.Errorf("%+v", bad)
	}
}

// The presets hold on etcd, for pauses that they are made for, and are drawn.
func TestPresets(t *testing.T) {
	for name, p := range map[string]lease.Timing{"default": lease.Default(), "lan": lease.LAN(), "wan": lease.WAN(), "cautious": lease.Cautious()} {
		w := advise.Wish{Engine: advise.Etcd(), Pause: p.TTL / 3, RTO: 2 * p.TTL, RoundTrip: 5 * time.Millisecond}
		e, found := advise.Lease(p, w)
		if advise.Worst(found) != advise.OK {
			t.Errorf("%s: %+v", name, found)
		}
		drawing := advise.Timeline(e, w)
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

// Raft's relations are its own, and so are the fixes.
func TestBadRaftTimings(t *testing.T) {
	for _, tt := range []struct {
		name     string
		timing   raft.Timing
		wish     advise.Wish
		relation string
		fix      string
	}{
		{"no patience", raft.Timing{Heartbeat: time.Millisecond}, advise.Wish{}, "Heartbeat = 1ms must be from 20ms", "--heartbeat=1s"},
		{"gives up before its voters may vote", raft.Timing{Heartbeat: second, Election: 500 * time.Millisecond}, advise.Wish{}, "Election = 500ms must not be below Heartbeat = 1s", "defaults"},
		{"pauses", raft.LAN(), advise.Wish{Pause: second}, "the longest pause = 1s must be at most", "--heartbeat=1.4s"},
		{"slow", raft.WAN(), advise.Wish{RTO: 2 * second}, "the RTO is 2s", "--heartbeat=590ms"},
	} {
		_, found := advise.Raft(tt.timing, tt.wish)
		bad := broken(found)
		if len(bad) == 0 || !strings.Contains(bad[0].Says, tt.relation) || !strings.Contains(bad[len(bad)-1].Fix, tt.fix) {
			t.Errorf("%s: %+v", tt.name, bad)
		}
	}
	// What is advised is enough.
	if _, found := advise.Raft(raft.Timing{Heartbeat: 1400 * time.Millisecond}, advise.Wish{Pause: second}); advise.Worst(found) != advise.OK {
		t.Errorf("%+v", found)
	}
}
