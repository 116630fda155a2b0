package ledger_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// onBoth runs a test on SQLite and on PostgreSQL.
func onBoth(t *testing.T, test func(t *testing.T, db string)) {
	t.Run("sqlite", func(t *testing.T) { test(t, filepath.Join(t.TempDir(), "l.db")) })
	t.Run("postgres", func(t *testing.T) { test(t, servertest.Postgres(t).URL()) })
}

func (s *site) apply(stamp fence.Stamp, writes ...api.Write) []api.Outcome {
	s.t.Helper()
	a, err := s.Apply(s.t.Context(), api.Batch{Resource: "r", Stamp: stamp, Writes: writes})
	if err != nil {
		s.t.Fatal(err)
	}
	return a.Outcomes
}

func job(key string, nextMS int64) api.Write {
	return api.Write{Job: &api.JobWrite{Key: key, Schedule: "@every 10ms", NextMS: nextMS, Payload: value(key)}}
}

func fire(key string, due, at, next int64) api.Write {
	return api.Write{Fire: &api.FireWrite{Job: key, DueMS: due, AtMS: at, NextMS: next}}
}

func delivered(key string, at int64, worker string) api.Write {
	return api.Write{Delivered: &api.DeliveredWrite{Job: key, AtMS: at, Worker: worker}}
}

// A job that is written again with the same schedule keeps a due instant that was not fired.
// With another schedule or none, it is due when the write says.
func TestJobWrittenAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, db string) {
		s := serveHere(t, ledger.Config{DB: db})
		again := func(schedule string, next int64) api.Write {
			return api.Write{Job: &api.JobWrite{Key: "j", Schedule: schedule, Payload: value(next), NextMS: next}}
		}
		for i, tt := range []struct {
			schedule   string
			next, want int64
		}{
			{"@every 10ms", 20, 20}, {"@every 10ms", 30, 20}, {"@every 10ms", 15, 15}, {"@every 20ms", 40, 40},
			{"", 60, 60}, {"", 80, 80}, {"@every 10ms", 90, 90},
		} {
			out := s.apply(at(7), again(tt.schedule, tt.next))
			j, err := s.Job(t.Context(), "r", "j")
			if err != nil || j.NextMS != tt.want || out[0].Job.NextMS != tt.want || j.Schedule != tt.schedule || string(j.Payload) != string(value(tt.next)) {
				t.Errorf("write %d: %+v %v, want it due at %d", i, j, err, tt.want)
			}
		}
		// The same holds within one batch, but not for a job that was deleted in between.
		s.apply(at(7), again("@every 10ms", 95), fire("j", 90, 90, 100), again("@every 10ms", 110))
		if j, err := s.Job(t.Context(), "r", "j"); err != nil || j.NextMS != 100 {
			t.Errorf("%+v %v", j, err)
		}
		s.apply(at(7), api.Write{Job: &api.JobWrite{Key: "j", Delete: true}}, again("@every 10ms", 500))
		if j, err := s.Job(t.Context(), "r", "j"); err != nil || j.NextMS != 500 {
			t.Errorf("%+v %v", j, err)
		}
	})
}

func (s *site) firings(pending bool) string {
	s.t.Helper()
	all := whole(s.t, func(after string) (api.Page[api.Firing], error) {
		return s.Firings(s.t.Context(), "r", pending, after, 2)
	})
	text := []string{}
	for _, f := range all {
		text = append(text, fmt.Sprintf("%d:%s@%d", f.N, f.Job, f.AtMS))
	}
	return strings.Join(text, " ")
}

// Jobs can be created, replaced and deleted. They are listed in the order in which they are
// due, in consecutive pages, up to an instant, with their number and the version of the last
// change.
func TestJobs(t *testing.T) {
	onBoth(t, func(t *testing.T, db string) {
		s := serveHere(t, ledger.Config{DB: db, Now: func() time.Time { return time.UnixMilli(1234) }})
		ctx := t.Context()
		if p, err := s.Jobs(ctx, "r", 0, "", 0); err != nil || len(p.Items) != 0 || p.Version != 0 || p.NowMS != 1234 {
			t.Errorf("jobs of a resource that is none yet: %+v, %v", p, err)
		}
		out := s.apply(at(7), job("c", 30), job("a:1/x", 20), job("b", 20), job("d", 10),
			api.Write{Job: &api.JobWrite{Key: "e", NextMS: 50, Misfire: "all"}}, job("c", 5),
			api.Write{Job: &api.JobWrite{Key: "d", Delete: true}}, api.Write{Job: &api.JobWrite{Key: "none", Delete: true}})
		want := []api.JobOutcome{{Version: 1, NextMS: 30}, {Version: 2, NextMS: 20}, {Version: 3, NextMS: 20}, {Version: 4, NextMS: 10}, {Version: 5, NextMS: 50}, {Version: 6, Existed: true, NextMS: 5}, {Version: 7, Existed: true}, {Version: 8}}
		for i, o := range out {
			if o.Job == nil || *o.Job != want[i] {
				t.Errorf("write %d: %s, want %+v", i, value(o), want[i])
			}
		}
		listed := func(before int64) string {
			t.Helper()
			text := []string{}
			for _, j := range whole(t, func(after string) (api.Page[api.Job], error) {
				p, err := s.Jobs(ctx, "r", before, after, 1)
				if p.Version != 8 || p.Total != 4 || p.NowMS != 1234 {
					t.Errorf("a page says %+v", p)
				}
				return p.Page, err
			}) {
				text = append(text, fmt.Sprintf("%s@%d", j.Key, j.NextMS))
			}
			return strings.Join(text, " ")
		}
		for before, want := range map[int64]string{0: "c@5 a:1/x@20 b@20 e@50", 50: "c@5 a:1/x@20 b@20", 51: "c@5 a:1/x@20 b@20 e@50", 5: ""} {
			if got := listed(before); got != want {
				t.Errorf("before %d there are %q, want %q", before, got, want)
			}
		}
		j, err := s.Job(ctx, "r", "a:1/x")
		if err != nil || !reflect.DeepEqual(j, api.Job{Key: "a:1/x", Schedule: "@every 10ms", Misfire: "once", Payload: value("a:1/x"), NextMS: 20, Token: 7, UpdatedMS: 1234}) {
			t.Errorf("the job is %+v, %v", j, err)
		}
		if _, err := s.Job(ctx, "r", "d"); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("a job that was deleted: %v", err)
		}
		if r, err := s.Resource(ctx, "r"); err != nil || r.Jobs != 4 || r.JobsVersion != 8 || r.NowMS != 1234 {
			t.Errorf("the resource is %+v, %v", r, err)
		}
		if got := s.metric(`tenure_ledger_jobs{resource="r"}`); got != "4" {
			t.Errorf("tenure_ledger_jobs is %s", got)
		}
	})
}

// A firing is recorded once for its job and instant, with the payload of the job, and stays
// pending until it was delivered. If a job is not as the leader expects, that is an outcome
// and fails nothing else.
func TestFirings(t *testing.T) {
	onBoth(t, func(t *testing.T, db string) {
		now := int64(1234)
		s := serveHere(t, ledger.Config{DB: db, Now: func() time.Time { return time.UnixMilli(now) }})
		ctx := t.Context()
		skip := fire("skipped", 10, 0, 90)
		skip.Fire.Skip = true
		s.apply(at(7), job("often", 10), job("once", 10), job("late", 10), job("skipped", 10), job("again", 10))
		for _, tt := range []struct {
			name  string
			write api.Write
			want  api.FireOutcome
		}{
			{"due", fire("often", 10, 10, 20), api.FireOutcome{}},
			{"the same again", fire("often", 10, 10, 20), api.FireOutcome{Duplicate: true, Moved: true}},
			{"its next, in the same batch", fire("often", 20, 20, 30), api.FireOutcome{}},
			{"too early", fire("often", 40, 40, 50), api.FireOutcome{Moved: true}},
			{"spent", fire("once", 10, 10, 0), api.FireOutcome{}},
			{"spent, again", fire("once", 10, 10, 0), api.FireOutcome{Duplicate: true, Moved: true}},
			{"the last of those missed", fire("late", 10, 70, 80), api.FireOutcome{}},
			{"skipped", skip, api.FireOutcome{}},
			{"no such job", fire("none", 10, 10, 20), api.FireOutcome{Moved: true}},
			{"a job that goes back", fire("again", 10, 10, 20), api.FireOutcome{}},
		} {
			if out := s.apply(at(7), tt.write); *out[0].Fire != tt.want {
				t.Errorf("%s: %+v, want %+v", tt.name, *out[0].Fire, tt.want)
			}
		}
		// In one batch: a job that is created again at an instant that was fired moves on and is not
		// fired again; and all missed instants of another job.
		out := s.apply(at(8), job("again", 10), fire("again", 10, 10, 20), fire("again", 20, 20, 30), fire("again", 30, 30, 0), fire("again", 40, 40, 0))
		if *out[1].Fire != (api.FireOutcome{Duplicate: true}) || *out[2].Fire != (api.FireOutcome{}) || *out[3].Fire != (api.FireOutcome{}) || *out[4].Fire != (api.FireOutcome{Moved: true}) {
			t.Errorf("in one batch: %s", value(out))
		}
		const all = "1:often@10 2:often@20 3:once@10 4:late@70 5:again@10 6:again@20 7:again@30"
		if got := s.firings(false); got != all || s.firings(true) != all {
			t.Errorf("the firings are %s", got)
		}
		p, err := s.Firings(ctx, "r", true, "2", 1)
		if err != nil || !reflect.DeepEqual(p.Items, []api.Firing{{N: 3, Job: "once", AtMS: 10, Token: 7, FiredMS: 1234, Payload: value("once")}}) || p.Next != "3" {
			t.Errorf("a firing of a job that is gone: %+v, %v", p, err)
		}
		if j, err := s.Jobs(ctx, "r", 0, "", 0); err != nil || len(j.Items) != 3 || j.Items[0].NextMS != 30 || j.Items[1].NextMS != 80 || j.Items[2].NextMS != 90 || j.Version != 6 {
			t.Errorf("the jobs are %+v, %v", j, err)
		}
		now = 2000
		out = s.apply(at(8), delivered("once", 10, "w1"), delivered("once", 10, "w2"), delivered("once", 11, "w1"), delivered("often", 20, ""))
		if *out[0].Delivered != (api.DeliveredOutcome{}) || *out[1].Delivered != (api.DeliveredOutcome{Duplicate: true}) || *out[2].Delivered != (api.DeliveredOutcome{Missing: true}) {
			t.Errorf("delivered: %s", value(out))
		}
		if out := s.apply(at(8), delivered("once", 10, "w2")); *out[0].Delivered != (api.DeliveredOutcome{Duplicate: true}) {
			t.Errorf("delivered again: %s", value(out))
		}
		if got := s.firings(true); got != "1:often@10 4:late@70 5:again@10 6:again@20 7:again@30" {
			t.Errorf("pending are %s", got)
		}
		if p, err := s.Firings(ctx, "r", false, "2", 1); err != nil || p.Items[0].Worker != "w1" || p.Items[0].DeliveredMS != 2000 || p.Items[0].FiredMS != 1234 {
			t.Errorf("a firing that was delivered: %+v, %v", p, err)
		}
		if r, err := s.Resource(ctx, "r"); err != nil || r.Jobs != 3 || r.Firings != 7 || r.FiringsPending != 5 {
			t.Errorf("the resource is %+v, %v", r, err)
		}
		for name, want := range map[string]string{
			`tenure_ledger_fires_total{outcome="fired"}`: "7", `tenure_ledger_fires_total{outcome="moved"}`: "5", `tenure_ledger_fires_total{outcome="duplicate"}`: "1",
			`tenure_ledger_fires_total{outcome="skipped"}`: "1", "tenure_ledger_delivered_total": "2", `tenure_ledger_firings_pending{resource="r"}`: "5",
		} {
			if got := s.metric(name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
	})
}

// Job writes of a stale leader are refused and change nothing. So does a valid leader's batch
// of which one part fails.
func TestStaleLeaderHasNoJobs(t *testing.T) {
	onBoth(t, func(t *testing.T, db string) {
		s := serveHere(t, ledger.Config{DB: db})
		ctx := t.Context()
		s.apply(at(7), job("a", 10), job("b", 10), fire("b", 10, 10, 20))
		if err := s.Seal(ctx, "r", at(8)); err != nil {
			t.Fatal(err)
		}
		state := func() string {
			t.Helper()
			jobs, err := s.Jobs(ctx, "r", 0, "", 0)
			firings, ferr := s.Firings(ctx, "r", false, "", 0)
			r, rerr := s.Resource(ctx, "r")
			if err := errors.Join(err, ferr, rerr); err != nil {
				t.Fatal(err)
			}
			jobs.NowMS, r.NowMS, r.LeadersActing = 0, 0, 0
			return string(value([]any{jobs, firings, r}))
		}
		before := state()
		for name, w := range map[string]api.Write{
			"job": job("c", 10), "delete": {Job: &api.JobWrite{Key: "a", Delete: true}}, "fire": fire("a", 10, 10, 0), "delivered": delivered("b", 10, "w"),
		} {
			_, err := s.Apply(ctx, api.Batch{Resource: "r", Stamp: at(7), Writes: []api.Write{w}})
			var stale *fence.StaleError
			if !errors.As(err, &stale) || stale.Mark.Token != 8 {
				t.Errorf("%s of a stale leader: %v", name, err)
			}
			_, err = s.Apply(ctx, api.Batch{Resource: "r", Stamp: at(8), Writes: []api.Write{w, {Sequence: &api.SequenceWrite{Name: "ids", First: 7, Last: 7}}}})
			var seq *api.SequenceError
			if !errors.As(err, &seq) {
				t.Errorf("%s beside a range that does not follow: %v", name, err)
			}
		}
		if after := state(); after != before {
			t.Errorf("it was\n%s\nand is\n%s", before, after)
		}
	})
}

// If many callers fire the same job at the same instant, through several ledgers if the
// database allows, one succeeds, and the firing exists once.
func TestFiredAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, db string) {
		ledgers := []*ledger.Ledger{open(t, ledger.Config{DB: db})}
		if strings.Contains(db, "://") {
			ledgers = append(ledgers, open(t, ledger.Config{DB: db}))
		}
		ctx := t.Context()
		const jobs, callers = 20, 8
		b := api.Batch{Resource: "r", Stamp: at(7)}
		for j := range jobs {
			b.Writes = append(b.Writes, job(fmt.Sprint("j", j), 10))
		}
		if _, err := ledgers[0].Apply(ctx, b); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		made := map[string]int{}
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for j := range jobs {
					key := fmt.Sprint("j", j)
					// Half of them are a new leader, which does what the old one did not do.
					a, err := ledgers[i%len(ledgers)].Apply(ctx, api.Batch{Resource: "r", Stamp: at(7 + fence.Token(i/4)), Writes: []api.Write{fire(key, 10, 10, 20)}})
					if err != nil {
						if !errors.Is(err, fence.ErrRefused) || i >= 4 {
							t.Error(err)
						}
						continue
					}
					o := *a.Outcomes[0].Fire
					mu.Lock()
					if o == (api.FireOutcome{}) {
						made[key]++
					} else if o != (api.FireOutcome{Duplicate: true, Moved: true}) {
						t.Errorf("%s: %+v", key, o)
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		p, err := ledgers[0].Firings(ctx, "r", false, "", 1000)
		if err != nil || len(p.Items) != jobs || len(made) != jobs {
			t.Fatalf("%d jobs were fired by %d, and %d firings are there, %v", jobs, len(made), len(p.Items), err)
		}
		for key, n := range made {
			if n != 1 {
				t.Errorf("%s was fired %d times", key, n)
			}
		}
	})
}

// A repeated strict batch about jobs gets the first answer, with the same time, and is made
// once.
func TestStrictJobs(t *testing.T) {
	now := int64(1000)
	s := serveHere(t, ledger.Config{Now: func() time.Time { now++; return time.UnixMilli(now) }})
	b := api.Batch{Resource: "r", Stamp: atSeq(7, 1), Writes: []api.Write{job("a", 10), fire("a", 10, 10, 20), fire("a", 15, 15, 20), delivered("a", 10, "w"), delivered("b", 10, "w")}}
	first, err := s.Apply(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Apply(t.Context(), b)
	if err != nil || !again.Retried || first.Retried || first.AtMS == 0 {
		t.Errorf("repeated: %+v, %v", again, err)
	}
	if one, two := string(value(first)), string(value(again)); one != two {
		t.Errorf("first it was answered\n%s\nand then\n%s", one, two)
	}
	if r, err := s.Resource(t.Context(), "r"); err != nil || r.Firings != 1 || r.FiringsPending != 0 || r.JobsVersion != 1 {
		t.Errorf("the resource is %+v, %v", r, err)
	}
	// The short answers have the ledger's time too.
	if a, err := s.Allocate(t.Context(), "r", atSeq(7, 2), api.SequenceWrite{Name: "ids", N: 1}); err != nil || a.AtMS <= first.AtMS {
		t.Errorf("numbers: %+v, %v", a, err)
	}
	if _, v := s.send("POST", "/v1/resources/r/seal", "", stamped("7")...); v["at_ms"] == nil || v["at_ms"].(float64) <= float64(first.AtMS) {
		t.Errorf("a seal: %v", v)
	}
}
