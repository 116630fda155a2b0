package scheduler_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/scheduler"
)

// With leaders that are killed, resign and return as zombies, on a real ledger, each job is
// fired once at each of its instants, and each firing reaches a worker and is done once.
func TestFailoversOnRealLedger(t *testing.T) {
	r := newRig(t)
	a, b := newWorkerAt(t).start(), newWorkerAt(t).start()
	workers := []string{a.url(), b.url()}
	nodes := []*scheduler.Scheduler{r.scheduler(scheduler.Config{Workers: workers}), r.scheduler(scheduler.Config{Workers: workers})}
	r.apply(1, ledgerapi.Write{Tick: &ledgerapi.TickWrite{}})
	first := r.now() + 300
	const every, once = 8, 40
	var jobs []ledgerapi.Write
	for i := range every {
		jobs = append(jobs, job(fmt.Sprint("every-", i), "@every 1s", ledgerapi.MisfireAll, `{"run":"count"}`, first+int64(i)*37))
	}
	for i := range once {
		jobs = append(jobs, job(fmt.Sprint("once-", i), "", ledgerapi.MisfireOnce, `{"n":1}`, first+int64(i)*90))
	}
	r.apply(1, jobs...)

	var zombies []*leading
	for token := fence.Token(2); token <= 7; token++ {
		s := nodes[token%2]
		if err := s.Preload(t.Context()); err != nil {
			t.Fatal(err)
		}
		fired := len(r.firings(false))
		l := r.lead(s, token)
		eventually(t, "the leader fires", func() bool { return len(r.firings(false)) > fired+4 })
		switch token % 3 {
		case 0: // it stops in order
			l.end(t)
		case 1: // it is killed: none of its requests arrive any more
			l.w.dead.Store(true)
			l.end(t)
		case 2: // it does not know that another leads
			zombies = append(zombies, l)
		}
	}
	for _, z := range zombies {
		if err := z.wait(t); !errors.Is(err, fence.ErrRefused) {
			t.Errorf("a stale leader ended with %v", err)
		}
	}
	l := r.lead(nodes[0], 8)
	eventually(t, "all are fired and delivered", func() bool {
		s := l.Status()
		return s.JobsPending == every && s.LateMS < 1000 && s.Tick > 0 && len(r.firings(true)) < every && r.now() > first+once*90+1000
	})
	l.end(t)
	r.check(l, first, every, once)
	// The last firings may not have been sent.
	l = r.lead(nodes[1], 9)
	// Delete all jobs, so that no firing is left unsent at the end.
	var gone []ledgerapi.Write
	for i := range every {
		gone = append(gone, ledgerapi.Write{Job: &ledgerapi.JobWrite{Key: fmt.Sprint("every-", i), Delete: true}})
	}
	r.apply(9, gone...)
	eventually(t, "nothing is pending", func() bool { return len(r.firings(true)) == 0 && a.status().Token == 9 && b.status().Token == 9 })
	l.end(t)
	all := uint64(len(r.firings(false)))
	eventually(t, "what was taken is done", func() bool { return a.status().Waiting == 0 && b.status().Waiting == 0 })
	if sa, sb := a.status(), b.status(); sa.Done == 0 || sb.Done == 0 || sa.Done+sb.Done != all {
		t.Errorf("%d firings, done are %d and %d:\n%+v\n%+v", all, sa.Done, sb.Done, sa, sb)
	}
}

// check checks the contents of the ledger.
func (r *rig) check(l *leading, first int64, every, once int) {
	r.t.Helper()
	seen := make(map[string]map[int64]bool)
	for _, f := range r.firings(false) {
		if seen[f.Job] == nil {
			seen[f.Job] = make(map[int64]bool)
		}
		if seen[f.Job][f.AtMS] {
			r.t.Errorf("%s at %d was fired twice", f.Job, f.AtMS)
		}
		seen[f.Job][f.AtMS] = true
		if f.FiredMS < f.AtMS {
			r.t.Errorf("%s at %d was fired %d ms early", f.Job, f.AtMS, f.AtMS-f.FiredMS)
		}
	}
	for i := range every {
		key := fmt.Sprint("every-", i)
		j, err := r.Job(r.t.Context(), group, key)
		if err != nil {
			r.t.Fatal(err)
		}
		for at := first + int64(i)*37; at < j.NextMS; at += 1000 {
			if !seen[key][at] {
				r.t.Errorf("%s at %d is missing", key, at)
			}
		}
	}
	for i := range once {
		if key := fmt.Sprint("once-", i); len(seen[key]) != 1 {
			r.t.Errorf("%s was fired %d times", key, len(seen[key]))
		}
	}
	ticks, err := r.Ticks(r.t.Context(), group, "", 0)
	if err != nil {
		r.t.Fatal(err)
	}
	instants := make(map[string]bool)
	for _, tick := range ticks.Items {
		if tick.Key != "" && instants[tick.Key] {
			r.t.Errorf("%s was ticked twice", tick.Key)
		}
		instants[tick.Key] = true
	}
	if s := l.Status(); len(instants) < 10 || s.TickMS%100 != 0 || s.Error != "" {
		r.t.Errorf("%d ticks, %+v", len(instants), s)
	}
}

// If a worker is down, firings are delayed but not lost: another worker gets them, and if all
// are down they wait for the first that returns.
func TestWorkersThatAreDown(t *testing.T) {
	r := newRig(t)
	a, b := newWorkerAt(t), newWorkerAt(t).start()
	r.apply(1, ledgerapi.Write{Tick: &ledgerapi.TickWrite{}})
	post := func(name string) {
		var jobs []ledgerapi.Write
		for i := range 30 {
			jobs = append(jobs, job(fmt.Sprint(name, i), "", "", `{}`, r.now()))
		}
		r.apply(1, jobs...)
	}
	s := r.scheduler(scheduler.Config{Workers: []string{a.url(), b.url()}, WorkerTimeout: 2 * time.Second})
	post("one-down-")
	l := r.lead(s, 1)
	eventually(t, "the other worker has all", func() bool { return b.status().Done == 30 && len(r.firings(true)) == 0 })
	b.stop()
	post("both-down-")
	s.Changed()
	eventually(t, "they are recorded", func() bool { return len(r.firings(false)) == 60 })
	if n := len(r.firings(true)); n != 30 {
		t.Errorf("%d are pending", n)
	}
	a.start()
	eventually(t, "the worker that came has all", func() bool { return a.status().Done == 30 && len(r.firings(true)) == 0 })
	for _, f := range r.firings(false) {
		if (f.Worker == a.url()) != (f.Job < "one") {
			t.Errorf("%s is said to be with %s", f.Job, f.Worker)
		}
	}
	l.end(t)
}

// Every worker gets the group's standing orders at the start of a term, soon after they
// change, and when it is reachable again.
func TestStandingOrders(t *testing.T) {
	r := newRig(t)
	a, b := newWorkerAt(t).start(), newWorkerAt(t)
	record := func(token fence.Token, orders string) {
		r.apply(token, ledgerapi.Write{Record: &ledgerapi.RecordWrite{Key: api.FleetRecord, Value: json.RawMessage(`{"orders":` + orders + `}`)}})
	}
	names := func(w *workerAt) (all string) {
		for _, o := range w.status().Orders {
			all += o.Name + " "
		}
		return all
	}
	s := r.scheduler(scheduler.Config{Workers: []string{a.url(), b.url()}, Tick: time.Second, Window: 5 * time.Second})
	record(1, `[{"name":"one","run":"count","every_ms":50}]`)
	l := r.lead(s, 2)
	eventually(t, "the first has it", func() bool { return names(a) == "one " && a.status().Token == 2 })
	record(2, `[{"name":"one","run":"count","every_ms":50},{"name":"two","run":"log","every_ms":1000}]`)
	s.Changed()
	eventually(t, "the first has both", func() bool { return names(a) == "one two " })
	b.start()
	eventually(t, "the second has both", func() bool { return names(b) == "one two " && b.status().Token == 2 })
	// An invalid order does not stop the rest.
	record(2, `[{"name":"bad","run":"sh","every_ms":50}]`)
	r.apply(2, job("j", "", "", `{}`, r.now()))
	s.Changed()
	eventually(t, "firings go on", func() bool { return a.status().Done+b.status().Done == 1 })
	if names(a) != "one two " {
		t.Errorf("it has %s", names(a))
	}
	l.end(t)
	count := a.status().Counts["one"]
	eventually(t, "it goes on while nobody leads", func() bool { return a.status().Counts["one"] > count+2 })
}

// A worker that has seen a newer leader ends the term of the old one. Sending is called before
// firings are sent.
func TestWorkerKnowsBetter(t *testing.T) {
	r := newRig(t)
	a := newWorkerAt(t).start()
	var sending atomic.Int64
	l := r.lead(r.scheduler(scheduler.Config{Workers: []string{a.url()}, Sending: func() { sending.Add(1) }}), 4)
	eventually(t, "the worker knows the leader", func() bool { return a.status().Token == 4 })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url()+"/orders", bytes.NewReader([]byte(`{"orders":[]}`)))
	if err != nil {
		t.Fatal(err)
	}
	if err := httpfence.Format(at(5), req.Header.Set); err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	r.apply(4, job("j", "", "", `{}`, r.now()))
	l.Changed()
	var stale *fence.StaleError
	if err := l.wait(t); !errors.As(err, &stale) || stale.Mark.Token != 5 {
		t.Errorf("it ended with %v", err)
	}
	if n := len(r.firings(true)); n != 1 {
		t.Errorf("%d are pending, the next leader should find the firing", n)
	}
	if sending.Load() == 0 {
		t.Error("Sending was not called")
	}
}

// An order that no worker accepts is recorded as undeliverable, and the orders sent with it are done.
func TestUndeliverable(t *testing.T) {
	r := newRig(t)
	a := newWorkerAt(t).start()
	r.apply(1, job("good-1", "", "", `{}`, 1), job("poison", "", "", `{"run":"sh"}`, 1), job("good-2", "", "", `{}`, 1))
	l := r.lead(r.scheduler(scheduler.Config{Workers: []string{a.url()}}), 1)
	eventually(t, "nothing is pending", func() bool { return len(r.firings(false)) == 3 && len(r.firings(true)) == 0 })
	if s := a.status(); s.Accepted != 2 {
		t.Errorf("%+v", s)
	}
	for _, f := range r.firings(false) {
		if (f.Worker == "(refused)") != (f.Job == "poison") {
			t.Errorf("%+v", f)
		}
	}
	l.end(t)
}

// If a worker does not say whether it has a firing, it is asked again. Another worker gets
// the firing only if it stays silent.
func TestSilentWorker(t *testing.T) {
	r := newRig(t)
	a := newWorkerAt(t).start()
	var silent atomic.Bool
	asked := make(chan struct{}, 100)
	gate := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		var o api.Orders
		_ = json.Unmarshal(body, &o)
		if len(o.Orders) > 0 && silent.Load() {
			asked <- struct{}{}
			panic(http.ErrAbortHandler) // the connection ends without an answer
		}
		w.WriteHeader(http.StatusOK)
	}))
	gate.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	gate.Start()
	defer gate.Close()
	silent.Store(true)
	s := r.scheduler(scheduler.Config{Workers: []string{gate.URL, a.url()}, Patience: time.Second})
	var jobs []ledgerapi.Write
	for i := range 20 {
		jobs = append(jobs, job(fmt.Sprint("j-", i), "", "", `{}`, 1))
	}
	r.apply(1, jobs...)
	l := r.lead(s, 1)
	eventually(t, "all are delivered", func() bool { return len(r.firings(false)) == 20 && len(r.firings(true)) == 0 })
	if len(asked) < 2 || a.status().Done != 20 {
		t.Errorf("the silent one was asked %d times, the other did %d", len(asked), a.status().Done)
	}
	l.end(t)
}

// An invalid configuration is refused before anything starts.
func TestConfig(t *testing.T) {
	r := newRig(t)
	for want, cfg := range map[string]scheduler.Config{
		"resource": {Ledger: r.Client},
		"ledger":   {Resource: group},
		"tick":     {Ledger: r.Client, Resource: group, Tick: time.Millisecond},
		"window":   {Ledger: r.Client, Resource: group, Window: time.Second},
		"firings":  {Ledger: r.Client, Resource: group, Firings: 5000},
		"workers":  {Ledger: r.Client, Resource: group, Workers: []string{"localhost:1"}},
		"twice":    {Ledger: r.Client, Resource: group, Workers: []string{"http://h:1", "http://h:1/"}},
		"outbox":   {Ledger: r.Client, Resource: group, Outbox: 1},
	} {
		if _, err := scheduler.New(cfg); err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
