package advise_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/advise"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

func members(n, down int) []advise.Member {
	out := make([]advise.Member, n)
	for i := range out {
		out[i] = advise.Member{Name: string(rune('a' + i)), URL: "http://" + string(rune('a'+i)), Leads: i == 0}
		if i >= n-down {
			out[i].Err = errors.New("timeout")
		}
	}
	return out
}

// healthy is a deployment without warnings.
func healthy() advise.Facts {
	return advise.Facts{
		Timing: lease.Timing{TTL: 8 * time.Second}, Engine: etcd.Caps(), Members: members(3, 0), Endpoints: 3,
		RoundTrips: []time.Duration{time.Millisecond, 2 * time.Millisecond}, Pause: 5 * time.Millisecond, Measured: time.Second,
		Clock: advise.Clock{Boottime: true, Known: true}, Meta: store.Meta{Deployment: "d1"}, Format: 1, ID: "doctor",
	}
}

// A healthy deployment has no finding above ok. Each fault gives a finding of its check and
// level, with its values and a fix.
func TestFacts(t *testing.T) {
	if found := healthy().Findings(); advise.Worst(found) != advise.OK {
		t.Fatalf("%+v", found)
	}
	for _, tt := range []struct {
		name  string
		spoil func(*advise.Facts)
		level advise.Level
		check string
		value string // in the finding or its fix
	}{
		{"one member", func(f *advise.Facts) { f.Members, f.Endpoints = members(1, 0), 1 }, advise.Warning, "quorum", "three members"},
		{"two members", func(f *advise.Facts) { f.Members, f.Endpoints = members(2, 0), 2 }, advise.Broken, "quorum", "third member"},
		{"four members", func(f *advise.Facts) { f.Members, f.Endpoints = members(4, 0), 4 }, advise.Warning, "quorum", "3 members, or 5"},
		{"no quorum", func(f *advise.Facts) { f.Members = members(3, 2) }, advise.Broken, "quorum", "1 of 3"},
		{"one member down", func(f *advise.Facts) { f.Members = members(3, 1) }, advise.Warning, "member", "c (http://c)"},
		{"not all named", func(f *advise.Facts) { f.Endpoints = 1 }, advise.Warning, "endpoints", "1 of 3"},
		{"disk full", func(f *advise.Facts) { f.Members[0].Alarms = []string{"NOSPACE"} }, advise.Broken, "member", "NOSPACE"},
		{"disk nearly full", func(f *advise.Facts) { f.Members[1].Size, f.Members[1].Quota = 95<<20, 100<<20 }, advise.Warning, "member", "95 %"},
		{"no leader", func(f *advise.Facts) { f.Members[0].Leads = false }, advise.Warning, "member", "quorum"},
		{"wall clock off", func(f *advise.Facts) { f.Members[2].Offset, f.Members[2].OffsetOK = -time.Minute, true }, advise.Warning, "clock", "-1m0s"},
		{"rewound", func(f *advise.Facts) { f.Meta.Rewound = true }, advise.Broken, "epoch", "tenure epoch raise"},
		{"record deleted", func(f *advise.Facts) { f.Meta.Rewound, f.Meta.Why = true, `the record of group "g" was deleted` }, advise.Broken, "epoch", `the record of group "g" was deleted`},
		{"no permission", func(f *advise.Facts) { f.SessionErr, f.Denied = errors.New("permission denied"), true }, advise.Broken, "permission", "permission denied"},
		{"no role", func(f *advise.Facts) { f.Service, f.SessionErr, f.Denied = true, errors.New("denied"), true }, advise.Warning, "permission", `"doctor"`},
		{"no writes", func(f *advise.Facts) { f.SessionErr = errors.New("no answer") }, advise.Broken, "write", "no answer"},
		{"duplicate node id", func(f *advise.Facts) {
			twin := func(id store.SessionID, at string) store.Session {
				return store.Session{ID: id, Candidate: tenure.Candidate{ID: "node-1", Address: at}, TTL: 8 * time.Second}
			}
			f.Duplicates = [][]store.Session{{twin("s1", "10.0.0.1:80"), twin("s2", "")}}
		}, advise.Warning, "identity", "node-1: sessions s1 (10.0.0.1:80), s2 (no address)"},
		{"slow round trip", func(f *advise.Facts) { f.RoundTrips = []time.Duration{3 * time.Second} }, advise.Broken, "round trip", "--ttl=18s"},
		{"slower round trip", func(f *advise.Facts) { f.RoundTrips = []time.Duration{time.Second} }, advise.Warning, "round trip", "CallTimeout = 2s"},
		{"long pause", func(f *advise.Facts) { f.Pause = 7 * time.Second }, advise.Broken, "pause", "--ttl=10s"},
		{"longish pause", func(f *advise.Facts) { f.Pause = 4 * time.Second }, advise.Warning, "pause", "4s"},
		{"throttled", func(f *advise.Facts) { f.Throttled = 12 }, advise.Warning, "throttled", "12"},
		{"short TTL", func(f *advise.Facts) { f.Timing.TTL = time.Second }, advise.Broken, "engine", "--ttl=2s"},
		{"suspended", func(f *advise.Facts) { f.Clock.Suspended = time.Hour }, advise.Warning, "suspend", "1h0m0s"},
		{"clock stops when suspended", func(f *advise.Facts) { f.Clock.Boottime = false }, advise.Warning, "clock", "suspend"},
		{"unsynchronised clock", func(f *advise.Facts) { f.Clock.Unsynchronized = true }, advise.Warning, "clock", "chrony"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := healthy()
			tt.spoil(&f)
			found := f.Findings()
			if advise.Worst(found) != tt.level {
				t.Errorf("the worst is %s: %+v", advise.Worst(found), found)
			}
			for _, one := range found {
				if one.Level == tt.level && one.Check == tt.check && one.Fix != "" && strings.Contains(one.Says+one.Fix, tt.value) {
					return
				}
			}
			t.Errorf("no finding %s %s with %q: %+v", tt.level, tt.check, tt.value, found)
		})
	}
}

// LongestPause returns a plausible time, and stops when its context does.
func TestLongestPause(t *testing.T) {
	if got := advise.LongestPause(t.Context(), 20*time.Millisecond); got < 0 || got > time.Minute {
		t.Errorf("%v", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if begin := time.Now(); advise.LongestPause(ended, time.Hour) > time.Minute || time.Since(begin) > time.Minute {
		t.Error("it does not stop")
	}
}
