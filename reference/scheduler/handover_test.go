package scheduler_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/scheduler"
)

// A leader that stops in order records what the workers have accepted. The next one does not
// send it again, although the jobs prefer another worker by then.
func TestHandoverIsNotDoneTwice(t *testing.T) {
	r := newRig(t)
	a, b := newWorkerAt(t), newWorkerAt(t).start()
	// The second tick is a year later, so it records nothing.
	cfg := scheduler.Config{Workers: []string{a.url(), b.url()}, Tick: 365 * 24 * time.Hour}
	const jobs = 20 // some prefer each worker
	var writes []ledgerapi.Write
	for i := range jobs {
		writes = append(writes, job(fmt.Sprint("j-", i), "", "", `{}`, 1))
	}
	r.apply(1, writes...)
	l := r.lead(r.scheduler(cfg), 2)
	eventually(t, "one worker has all", func() bool { return b.status().Done == jobs && l.Status().Dispatched == jobs })
	if n := len(r.firings(true)); n != jobs {
		t.Fatalf("%d are pending: this shows nothing", n)
	}
	a.start()
	l.end(t)
	if n := len(r.firings(true)); n != 0 {
		t.Errorf("%d are pending after a handover", n)
	}
	cfg.Tick = 100 * time.Millisecond
	l = r.lead(r.scheduler(cfg), 3)
	r.apply(3, job("after", "", "", `{}`, 1))
	l.Changed()
	eventually(t, "the next leader fires", func() bool {
		return a.status().Done+b.status().Done > jobs && len(r.firings(true)) == 0 && a.status().Token == 3
	})
	l.end(t)
	if n := a.status().Accepted + b.status().Accepted; n != jobs+1 {
		t.Errorf("%d firings were done %d times", jobs+1, n)
	}
}

// A pending request is finished when the leader stops, and its deliveries are recorded. A
// request that hangs is cut off soon.
func TestHandoverWaitsForWorkers(t *testing.T) {
	for name, answers := range map[string]bool{"it answers": true, "it hangs": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			arrived, answer := make(chan struct{}, 1), make(chan struct{})
			gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				body, _ := io.ReadAll(req.Body)
				var o api.Orders
				if _ = json.Unmarshal(body, &o); len(o.Orders) == 0 {
					return
				}
				arrived <- struct{}{}
				select {
				case <-answer:
				case <-req.Context().Done():
				}
			}))
			defer gate.Close()
			r.apply(1, job("j", "", "", `{}`, 1))
			l := r.lead(r.scheduler(scheduler.Config{Workers: []string{gate.URL}, WorkerTimeout: time.Minute}), 2)
			<-arrived
			pending := 1
			if answers {
				time.AfterFunc(100*time.Millisecond, func() { close(answer) })
				pending = 0
			}
			began := time.Now()
			l.end(t)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			if n := len(r.firings(true)); n != pending {
				t.Errorf("%d are pending, want %d", n, pending)
			}
		})
	}
}

// If workers refuse the standing orders, as invalid or too many, firings are still delivered.
func TestTooManyStandingOrders(t *testing.T) {
	r := newRig(t)
	a := newWorkerAt(t).start()
	older := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		var o api.Orders
		if _ = json.Unmarshal(body, &o); o.Replace {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer older.Close()
	var f api.Fleet
	for i := range 101 {
		f.Orders = append(f.Orders, api.Order{Name: fmt.Sprint("s-", i), Run: "count", EveryMS: 60_000})
	}
	value, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	writes := []ledgerapi.Write{{Record: &ledgerapi.RecordWrite{Key: api.FleetRecord, Value: value}}}
	for i := range 20 {
		writes = append(writes, job(fmt.Sprint("j-", i), "", "", `{}`, 1))
	}
	r.apply(1, writes...)
	l := r.lead(r.scheduler(scheduler.Config{Workers: []string{a.url(), older.URL}}), 2)
	eventually(t, "all are delivered", func() bool { return len(r.firings(false)) == 20 && len(r.firings(true)) == 0 })
	at := make(map[string]int)
	for _, f := range r.firings(false) {
		at[f.Worker]++
	}
	if at[a.url()] == 0 || at[older.URL] == 0 || len(a.status().Orders) != 0 {
		t.Errorf("%v", at)
	}
	l.end(t)
}

// By default an instant that a failover delayed by some seconds is a misfire: "skip" skips
// it, and "once" fires once for all.
func TestMisfiresOfAFailover(t *testing.T) {
	r := newRig(t)
	r.apply(1, ledgerapi.Write{Tick: &ledgerapi.TickWrite{}})
	now := r.now()
	past := now - 20_000
	r.apply(1, job("skip", "@every 1s", "skip", `{}`, past), job("once", "@every 1s", "once", `{}`, past), job("all", "@every 1s", "all", `{}`, past))
	l := r.lead(r.scheduler(scheduler.Config{}), 2)
	old := func() map[string]int {
		n := make(map[string]int)
		for _, f := range r.firings(false) {
			if f.AtMS < now-5000 {
				n[f.Job]++
			}
		}
		return n
	}
	eventually(t, "all are fired of the one that wants all", func() bool { return old()["all"] == 15 })
	l.end(t)
	if n := old(); n["skip"] != 0 || n["once"] != 0 {
		t.Errorf("fired of what was missed: %v", n)
	}
	if s := l.Status(); s.Skipped == 0 {
		t.Errorf("%+v", s)
	}
}
