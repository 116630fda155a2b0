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
)

func members(n, down int) []advise.Member {
	out := make([]advise.Member, n)
	for i := range out {
		out[i] = advise.Member{Name: string(rune('a' + i)), URL: "http://" + string(rune('a'+i)), Leads: i == 0}
		if i >= n-down {
			out[i].Err = errors.New("no answer in time")
		}
	}
	return out
}

// healthy is a deployment of which nothing is to be said.
func healthy() advise.Facts {
	return advise.Facts{
		Timing: lease.Timing{TTL: 8 * time.Second}, Engine: advise.Etcd(), Members: members(3, 0), Named: 3,
		RoundTrips: []time.Duration{time.Millisecond, 2 * time.Millisecond}, Pause: 5 * time.Millisecond, Measured: time.Second,
		Clock: advise.Clock{Boottime: true, Known: true}, Meta: lease.Meta{Deployment: "d1"}, Format: 1, As: "doctor",
	}
}

// A sound deployment has no finding above ok; each thing that can be wrong with it is
// named, at its level, with a fix.
func TestFacts(t *testing.T) {
	if found := healthy().Findings(); advise.Worst(found) != advise.OK {
		t.Fatalf("%+v", found)
	}
	for _, tt := range []struct {
		name  string
		spoil func(*advise.Facts)
		level advise.Level
		says  string
		fix   string
	}{
		{"one member", func(f *advise.Facts) { f.Members, f.Named = members(1, 0), 1 }, advise.Warning, "one member tolerates no loss", "three members"},
		{"two members", func(f *advise.Facts) { f.Members, f.Named = members(2, 0), 2 }, advise.Broken, "a majority of 2 is 2", "a third member"},
		{"four members", func(f *advise.Facts) { f.Members, f.Named = members(4, 0), 4 }, advise.Warning, "4 members need 3 to answer and tolerate 1 losses, as 3 do", "3 members, or 5"},
		{"no quorum", func(f *advise.Facts) { f.Members = members(3, 2) }, advise.Broken, "1 of 3 members answer, and 2 are needed", "never start a second cluster"},
		{"one away", func(f *advise.Facts) { f.Members = members(3, 1) }, advise.Warning, "c (http://c) does not answer", "see its log"},
		{"not all named", func(f *advise.Facts) { f.Named = 1 }, advise.Warning, "1 of 3 members are named", "name all members"},
		{"no room", func(f *advise.Facts) { f.Members[0].Alarms = []string{"NOSPACE"} }, advise.Broken, "has raised NOSPACE", "disarm the alarm"},
		{"little room", func(f *advise.Facts) { f.Members[1].Size, f.Members[1].Quota = 95<<20, 100<<20 }, advise.Warning, "95 % of its quota", "defragment"},
		{"no leader", func(f *advise.Facts) { f.Members[0].Leads = false }, advise.Warning, "no member says that it leads", "quorum"},
		{"another time", func(f *advise.Facts) { f.Members[2].Offset, f.Members[2].OffsetOK = time.Minute, true }, advise.Warning, "is 1m0s from ours", "synchronise"},
		{"rewound", func(f *advise.Facts) { f.Meta.Rewound = true }, advise.Broken, "went back behind what it had acknowledged", "tenure epoch raise"},
		{"record deleted", func(f *advise.Facts) { f.Meta.Rewound, f.Meta.Why = true, `the record of group "g" was deleted` }, advise.Broken, `the store lost data: the record of group "g" was deleted`, "tenure epoch raise"},
		{"no permission", func(f *advise.Facts) { f.Wrote, f.Denied = errors.New("permission denied"), true }, advise.Broken, "does not let us write", "read and write on the prefix"},
		{"no role", func(f *advise.Facts) { f.Service, f.Wrote, f.Denied = true, errors.New("denied"), true }, advise.Warning, `as "doctor"`, "verb campaign"},
		{"no writes", func(f *advise.Facts) { f.Wrote = errors.New("no answer") }, advise.Broken, "could not be opened and closed", "engine"},
		{"runs twice", func(f *advise.Facts) {
			twin := func(id lease.SessionID, at string) lease.Session {
				return lease.Session{ID: id, Candidate: tenure.Candidate{ID: "node-1", Address: at}, TTL: 8 * time.Second}
			}
			f.Duplicates = [][]lease.Session{{twin("s1", "10.0.0.1:80"), twin("s2", "")}}
		}, advise.Warning, "node-1 runs twice: sessions s1 (10.0.0.1:80), s2 (no address)", "give each process its own --id"},
		{"a long way", func(f *advise.Facts) { f.RoundTrips = []time.Duration{3 * time.Second} }, advise.Broken, "the longest round trip = 3s must be less than CallTimeout = 2s", "--ttl=18s"},
		{"a longish way", func(f *advise.Facts) { f.RoundTrips = []time.Duration{time.Second} }, advise.Warning, "more than a third of CallTimeout", "longer TTL"},
		{"stands still", func(f *advise.Facts) { f.Pause = 7 * time.Second }, advise.Broken, "the longest pause = 7s must be at most", "--ttl=10s"},
		{"nearly stands still", func(f *advise.Facts) { f.Pause = 4 * time.Second }, advise.Warning, "stood still for 4s", "longer TTL"},
		{"throttled", func(f *advise.Facts) { f.Throttled = 12 }, advise.Warning, "held this control group back 12 times", "CPU limit"},
		{"too short a TTL", func(f *advise.Facts) { f.Timing.TTL = time.Second }, advise.Broken, "TTL = 1s must be at least 2s", "--ttl=2s"},
		{"suspends", func(f *advise.Facts) { f.Clock.Suspended = time.Hour }, advise.Warning, "was suspended for 1h0m0s", "do not let machines"},
		{"stands still when suspended", func(f *advise.Facts) { f.Clock.Boottime = false }, advise.Warning, "may stand still while the machine is suspended", "do not let machines"},
		{"nobody sets the clock", func(f *advise.Facts) { f.Clock.Unsynchronized = true }, advise.Warning, "nothing disciplines the wall clock", "chrony"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := healthy()
			tt.spoil(&f)
			found := f.Findings()
			if advise.Worst(found) != tt.level {
				t.Errorf("the worst is %s: %+v", advise.Worst(found), found)
			}
			for _, one := range found {
				if one.Level == tt.level && strings.Contains(one.Says, tt.says) && strings.Contains(one.Fix, tt.fix) {
					return
				}
			}
			t.Errorf("it is not said: %+v", found)
		})
	}
}

// A process that is stopped is seen to have been.
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
