package scheduler

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/schedule"
)

// The writes for a job depend only on its schedule, its misfire rule and how late it is. They
// are shown as due>at→next, with ! if the instant is skipped.
func TestDecide(t *testing.T) {
	const (
		sec   = int64(1000)
		grace = 60 * sec
	)
	for _, tt := range []struct {
		name, schedule, misfire string
		due, now                int64
		room                    int
		want                    string
	}{
		{"not yet", "@every 10s", "once", 100, 99, 9, ""},
		{"on time", "@every 10s", "once", 100, 100, 9, "100>100→110"},
		{"late within the grace", "@every 10s", "skip", 100, 160, 9, "100>100→110 110>110→120 120>120→130 130>130→140 140>140→150 150>150→160 160>160→170"},
		{"late within the grace, little room", "@every 10s", "once", 100, 160, 2, "100>100→110 110>110→120"},
		{"misfires, all", "@every 50s", "all", 100, 261, 9, "100>100→150 150>150→200 200>200→250 250>250→300"},
		{"misfires, once", "@every 50s", "once", 100, 261, 9, "100>200→250 250>250→300"},
		{"misfires, skip", "@every 50s", "skip", 100, 261, 9, "100>200→250! 250>250→300"},
		{"one misfire, once", "@every 200s", "once", 100, 161, 9, "100>100→300"},
		{"one misfire, skip", "@every 200s", "skip", 100, 161, 9, "100>100→300!"},
		{"at the edge of the grace", "@every 200s", "skip", 100, 160, 9, "100>100→300"},
		{"an instant", "", "once", 100, 100, 9, "100>100→0"},
		{"an instant, late", "", "once", 100, 1000, 9, "100>100→0"},
		{"an instant, late and skipped", "", "skip", 100, 1000, 9, "100>100→0!"},
		{"no word is once", "@every 50s", "", 100, 261, 9, "100>200→250 250>250→300"},
		{"cron", "* * * * *", "once", 60, 100, 9, "60>60→120"},
		{"cron misfires", "* * * * *", "once", 60, 100_000, 9, "60>99900→99960 99960>99960→100020"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var spec schedule.Spec
			if tt.schedule != "" {
				var err error
				if spec, err = schedule.Parse(tt.schedule); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for _, f := range decide("j", tt.misfire, spec, tt.due*sec, tt.now*sec, grace, tt.room) {
				s := fmt.Sprintf("%d>%d→%d", f.DueMS/sec, f.AtMS/sec, f.NextMS/sec)
				if f.Skip {
					s += "!"
				}
				got = append(got, s)
			}
			if got := strings.Join(got, " "); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}

// Ticks are at multiples of their interval, never twice at one, missed ones are not made up
// for, and they continue when the ledger's clock is set back.
func TestNextTick(t *testing.T) {
	for _, tt := range []struct {
		name            string
		now, last, next int64
		missed          int64
	}{
		{"the first", 10_400, 0, 10_000, 0},
		{"in time", 10_400, 10_000, 11_000, 0},
		{"exactly", 11_000, 10_000, 11_000, 0},
		{"time was learned anew and is a little behind", 9_999, 10_000, 11_000, 0},
		{"a failover later", 15_300, 10_000, 15_000, 4},
		{"the clock was set back", 7_300, 10_000, 8_000, 0},
	} {
		next := nextTick(tt.now, tt.last, 1000)
		if missed := missedTicks(tt.last, next, 1000); next != tt.next || missed != tt.missed {
			t.Errorf("%s: %d, %d missed; want %d, %d", tt.name, next, missed, tt.next, tt.missed)
		}
	}
}

func at(key string, next int64) ledgerapi.Job {
	return ledgerapi.Job{Key: key, Schedule: "@every 10s", Misfire: ledgerapi.MisfireAll, NextMS: next}
}

// A tick takes the oldest instants first, leaves room for others beside a job with many
// missed instants, and gives that job the remaining room.
func TestPlanIsFair(t *testing.T) {
	w := newWindow([]ledgerapi.Job{at("old", 10_000), at("new", 990_000)}, 2_000_000, false, 1, 2)
	count := func(all []planned) map[string]int {
		n := make(map[string]int)
		for _, p := range all {
			n[p.job.Key]++
		}
		return n
	}
	if got := count(w.plan(1_000_000, 0, 32)); !reflect.DeepEqual(got, map[string]int{"old": 30, "new": 2}) {
		t.Errorf("with room for 32: %v", got)
	}
	if got := count(w.plan(1_000_000, 0, 1000)); !reflect.DeepEqual(got, map[string]int{"old": 100, "new": 2}) {
		t.Errorf("with room for all: %v", got)
	}
}

// The window reports that it has not enough: it ends, it was found wrong, or it ends within
// an instant that has more jobs than fit.
func TestWindowEnough(t *testing.T) {
	whole := newWindow([]ledgerapi.Job{at("a", 100)}, 1000, false, 1, 1)
	cut := newWindow([]ledgerapi.Job{at("a", 500), at("b", 500)}, 1000, true, 1, 9)
	for _, tt := range []struct {
		name  string
		w     *window
		until int64
		room  int
		want  bool
	}{
		{"whole", whole, 999, 5, true},
		{"whole, at its end", whole, 1000, 5, false},
		{"cut, before", cut, 499, 5, true},
		{"cut, at it", cut, 500, 5, false},
		{"cut, at it, but as many as fit", cut, 500, 2, true},
	} {
		if got := tt.w.enough(tt.until, tt.room); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	p := whole.plan(100, 0, 5)
	if f := whole.apply(p[0], ledgerapi.FireOutcome{Moved: true}); f != nil || whole.enough(1, 1) {
		t.Error("a job that was moved by another leader leaves the window as it is")
	}
	// The job leaves the window, and what was fired is still sent.
	p = cut.plan(500, 0, 5)
	if f := cut.apply(p[0], ledgerapi.FireOutcome{}); f == nil || f.AtMS != 500 || cut.jobs[f.Job] != nil {
		t.Errorf("fired: %+v", f)
	}
}

// A job with an invalid schedule is kept, and does not prevent other jobs from firing.
func TestUnreadableJob(t *testing.T) {
	broken := at("broken", 50)
	broken.Schedule = "whenever"
	w := newWindow([]ledgerapi.Job{broken, at("good", 60)}, 1000, false, 1, 2)
	p := w.plan(100, 1000, 5)
	if len(p) != 2 || p[0].job.Key != "broken" || !p[0].write.Skip || p[0].write.NextMS != 100+postponedMS || p[1].write.AtMS != 60 {
		t.Errorf("%+v", p)
	}
}
