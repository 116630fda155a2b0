package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/worker"
)

// running is a worker in this process.
type running struct {
	t    *testing.T
	url  string
	stop func()
}

func start(t *testing.T, cfg worker.Config) *running {
	t.Helper()
	cfg.ID, cfg.Listen, cfg.Log = "w-1", "127.0.0.1:0", slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	addr, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- worker.Run(ctx, cfg, func(a string) { addr <- a }) }()
	r := &running{t: t}
	select {
	case a := <-addr:
		r.url = "http://" + a
	case err := <-ended:
		t.Fatal(err)
	}
	once := false
	r.stop = func() {
		if once {
			return
		}
		once = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(r.stop)
	return r
}

func at(token fence.Token) fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "billing", Token: token}
}

// post sends orders and returns the status and the answer.
func (r *running) post(s fence.Stamp, body any) (int, worker.Accepted, error) {
	r.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.send(data, func(set func(string, string)) error { return httpfence.Format(s, set) })
}

func (r *running) send(data []byte, stamp func(set func(string, string)) error) (int, worker.Accepted, error) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url+"/orders", bytes.NewReader(data))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := stamp(req.Header.Set); err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	refusal := httpfence.Refusal(resp)
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	var a worker.Accepted
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, &a); err != nil {
			r.t.Fatal(err)
		}
	} else if refusal == nil {
		refusal = errors.New(string(text))
	}
	return resp.StatusCode, a, refusal
}

func (r *running) accepted(s fence.Stamp, o api.Orders, want worker.Accepted) {
	r.t.Helper()
	if code, a, err := r.post(s, o); code != http.StatusOK || a != want {
		r.t.Fatalf("%d %+v %v, want %+v", code, a, err, want)
	}
}

func (r *running) get(path string) []byte {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url+path, http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%s: %d %v", path, resp.StatusCode, err)
	}
	return text
}

func (r *running) status() (s worker.Status) {
	r.t.Helper()
	if err := json.Unmarshal(r.get("/status"), &s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// until waits for a status for which ok returns true.
func (r *running) until(what string, ok func(worker.Status) bool) worker.Status {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s := r.status()
		if ok(s) {
			return s
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: not so after 20s: %+v", what, s)
		}
	}
}

func once(job string, at int64, run, payload string) api.Order {
	o := api.Order{Name: job, Run: run, Job: job, AtMS: at}
	if payload != "" {
		o.Payload = json.RawMessage(payload)
	}
	return o
}

func orders(all ...api.Order) api.Orders { return api.Orders{Orders: all} }

// A firing is done once however often it is delivered, also by another leader and after a
// restart, and the counts of the status are right.
func TestDoneOnce(t *testing.T) {
	dir := t.TempDir()
	r := start(t, worker.Config{Dir: dir})
	r.accepted(at(5), orders(once("a", 1, "count", ""), once("a", 2, "count", "[1]")), worker.Accepted{Accepted: 2})
	r.accepted(at(5), orders(once("a", 2, "count", ""), once("b", 1, "count", "")), worker.Accepted{Accepted: 1, Duplicates: 1})
	s := r.until("all are done", func(s worker.Status) bool { return s.Done == 3 })
	if s.Counts["a"] != 2 || s.Counts["b"] != 1 || s.Token != 5 || s.Accepted != 3 || s.Duplicates != 1 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
	r.stop()
	r = start(t, worker.Config{Dir: dir})
	r.accepted(at(6), orders(once("a", 1, "count", ""), once("a", 2, "count", "")), worker.Accepted{Duplicates: 2})
	if s := r.status(); s.Counts["a"] != 0 || s.Waiting != 0 {
		t.Errorf("after a restart: %+v", s)
	}
	if text := string(r.get("/metrics")); !strings.Contains(text, "tenure_token 6") || !strings.Contains(text, `tenure_worker_orders_total{outcome="duplicate"} 2`) {
		t.Error("metrics: " + text)
	}
	r.get("/healthz")
}

// A token below the highest is refused, with both tokens in the answer, also after a restart,
// and none of its orders is done.
func TestStaleLeaderIsRefused(t *testing.T) {
	dir := t.TempDir()
	r := start(t, worker.Config{Dir: dir})
	r.accepted(at(7), orders(), worker.Accepted{})
	for range 2 {
		code, _, err := r.post(at(6), orders(once("a", 1, "count", "")))
		var stale *fence.StaleError
		if code != http.StatusPreconditionFailed || !errors.As(err, &stale) || stale.Mark.Token != 7 || stale.Stamp.Token != 6 {
			t.Fatalf("%d %v", code, err)
		}
		if s := r.status(); s.Refused != 1 || s.Accepted != 0 || s.Token != 7 {
			t.Fatalf("%+v", s)
		}
		r.stop()
		r = start(t, worker.Config{Dir: dir})
	}
	foreign := at(8)
	foreign.Group = "other"
	if code, _, err := r.post(foreign, orders()); code != http.StatusConflict {
		t.Errorf("a foreign leader: %d %v", code, err)
	}
}

// Standing orders continue while nobody leads and after a restart, until they are replaced.
// Unchanged ones are not interrupted.
func TestStandingOrdersGoOn(t *testing.T) {
	dir := t.TempDir()
	r := start(t, worker.Config{Dir: dir})
	standing := func(name string, every int64) api.Order { return api.Order{Name: name, Run: "count", EveryMS: every} }
	r.accepted(at(1), api.Orders{Replace: true, Orders: []api.Order{standing("fast", 10), standing("slow", 3_600_000)}}, worker.Accepted{Accepted: 2})
	r.until("it goes on", func(s worker.Status) bool { return s.Counts["fast"] > 3 && s.Counts["slow"] == 1 })
	r.stop()
	r = start(t, worker.Config{Dir: dir})
	r.until("it goes on after a restart", func(s worker.Status) bool {
		return s.Counts["fast"] > 3 && s.Counts["slow"] == 1 && len(s.Orders) == 2 && s.Token == 1
	})
	// A new leader that does not mention them changes nothing.
	r.accepted(at(2), orders(), worker.Accepted{})
	before := r.status().Counts["fast"]
	r.until("it goes on under a new leader", func(s worker.Status) bool { return s.Counts["fast"] > before+3 && s.Token == 2 })
	r.accepted(at(2), api.Orders{Replace: true, Orders: []api.Order{standing("slow", 3_600_000), standing("other", 20)}}, worker.Accepted{Accepted: 2})
	s := r.until("the other goes on", func(s worker.Status) bool { return s.Counts["other"] > 3 })
	if len(s.Orders) != 2 || s.Orders[0].Name != "other" || s.Orders[1].Runs != 1 || s.Counts["slow"] != 1 {
		t.Errorf("%+v %v", s.Orders, s.Counts)
	}
	fast := s.Counts["fast"]
	r.until("time passes", func(s worker.Status) bool { return s.Counts["other"] > 10 })
	if n := r.status().Counts["fast"]; n != fast {
		t.Errorf("an order that was replaced went on: %d, then %d", fast, n)
	}
}

// A higher token ends running orders of a lower one, and accepted orders start again under
// it.
func TestHigherTokenEndsWhatRuns(t *testing.T) {
	r := start(t, worker.Config{Dir: t.TempDir()})
	r.accepted(at(1), orders(once("long", 1, "sleep", `{"ms":3600000}`)), worker.Accepted{Accepted: 1})
	r.until("it runs", func(worker.Status) bool {
		return strings.Contains(string(r.get("/metrics")), "tenure_worker_running 1")
	})
	began := time.Now()
	r.accepted(at(2), orders(once("short", 1, "sleep", `{"ms":1}`)), worker.Accepted{Accepted: 1})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the new leader waited %v", took)
	}
	s := r.until("the short one is done", func(s worker.Status) bool { return s.Done == 1 && s.Interrupted == 1 })
	if s.Waiting != 1 || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
	r.until("the long one runs again", func(worker.Status) bool {
		return strings.Contains(string(r.get("/metrics")), "tenure_worker_running 1")
	})
}

// Invalid orders are refused as a whole with the reason, and none of them is executed.
func TestBadOrders(t *testing.T) {
	r := start(t, worker.Config{Dir: t.TempDir(), Waiting: 2, Standing: 1, MaxBody: 20_000, Running: 1})
	good := once("good", 1, "count", "")
	for _, tt := range []struct {
		name string
		body any
		code int
		want string
	}{
		{"a shell", orders(good, once("x", 1, "sh", "")), 422, `\"sh\" is none of`},
		{"no name", orders(good, api.Order{Run: "count", Job: "x", AtMS: 1}), 422, "name"},
		{"no job", orders(good, api.Order{Name: "x", Run: "count", AtMS: 1}), 422, "job and at_ms"},
		{"too often", orders(good, api.Order{Name: "x", Run: "count", EveryMS: 1}), 422, "every_ms"},
		{"an instant that stands", orders(good, api.Order{Name: "x", Run: "count", EveryMS: 100, Job: "x", AtMS: 1}), 422, "standing"},
		{"a long sleep", orders(good, once("x", 1, "sleep", `{"ms":99999999}`)), 422, "ms 99999999"},
		{"a name twice", orders(api.Order{Name: "x", Run: "count", EveryMS: 100}, api.Order{Name: "x", Run: "log", EveryMS: 100}), 422, "used twice"},
		{"too many stand", orders(api.Order{Name: "x", Run: "count", EveryMS: 100}, api.Order{Name: "y", Run: "log", EveryMS: 100}), 422, "2 standing orders"},
		{"too many wait", orders(good, once("good", 2, "count", ""), once("good", 3, "count", "")), 429, "room for 2"},
		{"no JSON", "x", 400, "bad_body"},
		{"a misspelt word", map[string]any{"order": []int{}}, 400, "bad_body"},
		{"too large", orders(once("x", 1, "count", `"`+strings.Repeat("x", 30_000)+`"`)), 413, "20000"},
	} {
		code, _, err := r.post(at(1), tt.body)
		if code != tt.code || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %d %v, want %d %q", tt.name, code, err, tt.code, tt.want)
		}
	}
	code, _, err := r.send([]byte(`{"orders":[]}`), func(func(string, string)) error { return nil })
	if code != http.StatusPreconditionRequired {
		t.Errorf("no stamp: %d %v", code, err)
	}
	code, _, err = r.send([]byte(`{"orders":[]}`), func(set func(string, string)) error {
		set("Fencing-Token", "-1")
		return nil
	})
	if code != http.StatusBadRequest {
		t.Errorf("a bad stamp: %d %v", code, err)
	}
	if s := r.status(); s.Accepted != 0 || s.Waiting != 0 || len(s.Orders) != 0 || s.Counts["good"] != 0 {
		t.Errorf("something of it was taken: %+v", s)
	}
}

// Validate finds orders that a worker would always refuse: more than a hundred standing
// orders, or one that breaks a rule.
func TestValidate(t *testing.T) {
	var all api.Orders
	for i := range 100 {
		all.Orders = append(all.Orders, api.Order{Name: fmt.Sprint("s-", i), Run: "count", EveryMS: 1000})
	}
	if err := worker.Validate(all); err != nil {
		t.Error(err)
	}
	with := func(o api.Order) api.Orders {
		return api.Orders{Replace: true, Orders: append(all.Orders[:99:99], o)}
	}
	one := all
	one.Orders = append(one.Orders[:100:100], api.Order{Name: "one", Run: "log", EveryMS: 1000})
	for want, o := range map[string]api.Orders{
		"101 standing orders": one,
		"is none of":          with(api.Order{Name: "x", Run: "sh", EveryMS: 1000}),
		"used twice":          with(all.Orders[0]),
		"from 10 to":          with(api.Order{Name: "x", Run: "count", EveryMS: 9}),
		"every_ms: from":      with(api.Order{Name: "x", Run: "count", EveryMS: -1 << 62}),
		"job and at_ms":       with(api.Order{Name: "x", Run: "count"}),
	} {
		if err := worker.Validate(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// A worker whose limit is below its existing standing orders accepts firings, and standing
// orders within the limit.
func TestLowerLimits(t *testing.T) {
	dir := t.TempDir()
	r := start(t, worker.Config{Dir: dir})
	x, y := api.Order{Name: "x", Run: "count", EveryMS: 60_000}, api.Order{Name: "y", Run: "count", EveryMS: 60_000}
	r.accepted(at(1), orders(x, y, once("long", 1, "sleep", `{"ms":3600000}`), once("long", 2, "sleep", `{"ms":3600000}`)), worker.Accepted{Accepted: 4})
	r.stop()
	r = start(t, worker.Config{Dir: dir, Standing: 1, Waiting: 3})
	r.accepted(at(1), orders(once("a", 1, "count", "")), worker.Accepted{Accepted: 1})
	r.stop()
	r = start(t, worker.Config{Dir: dir, Standing: 1, Waiting: 1})
	r.accepted(at(1), api.Orders{Replace: true, Orders: []api.Order{x}}, worker.Accepted{Accepted: 1})
}

// A second worker refuses to share the first one's directory, and says why.
func TestDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	start(t, worker.Config{Dir: dir})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := worker.Run(ctx, worker.Config{ID: "w-2", Dir: dir, Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)}, nil)
	if err == nil || !strings.Contains(err.Error(), "another worker uses it") {
		t.Errorf("%v", err)
	}
	if err := worker.Run(t.Context(), worker.Config{ID: "W 2", Waiting: -1}, nil); err == nil || !strings.Contains(err.Error(), "id:") || !strings.Contains(err.Error(), "dir:") || !strings.Contains(err.Error(), "waiting:") {
		t.Errorf("%v", err)
	}
}

// Finished orders are recognised up to the limit, and not beyond.
func TestRetention(t *testing.T) {
	r := start(t, worker.Config{Dir: t.TempDir(), Remember: 10})
	for i := range 30 {
		r.accepted(at(1), orders(once("a", int64(i+1), "count", "")), worker.Accepted{Accepted: 1})
	}
	r.until("all are done", func(s worker.Status) bool { return s.Done == 30 })
	r.accepted(at(1), orders(once("a", 30, "count", ""), once("a", 21, "count", "")), worker.Accepted{Duplicates: 2})
	// Each finished order makes the oldest one unknown.
	r.accepted(at(1), orders(once("b", 1, "count", "")), worker.Accepted{Accepted: 1})
	r.until("done", func(s worker.Status) bool { return s.Done == 31 })
	r.accepted(at(1), orders(once("a", 1, "count", "")), worker.Accepted{Accepted: 1})
}

// Concurrent orders of one leader are all accepted, and each is done.
func TestManyAtOnce(t *testing.T) {
	r := start(t, worker.Config{Dir: t.TempDir()})
	const senders, batches, size = 8, 5, 20
	failed := make(chan error, senders)
	for i := range senders {
		go func() {
			for b := range batches {
				var o api.Orders
				for k := range size {
					o.Orders = append(o.Orders, once(fmt.Sprintf("job-%d", i), int64(b*size+k+1), "count", ""))
				}
				if code, a, err := r.post(at(3), o); code != http.StatusOK || a.Accepted != size {
					failed <- fmt.Errorf("%d %+v %w", code, a, err)
					return
				}
			}
			failed <- nil
		}()
	}
	for range senders {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	s := r.until("all are done", func(s worker.Status) bool { return s.Done == senders*batches*size })
	for i := range senders {
		if n := s.Counts[fmt.Sprintf("job-%d", i)]; n != batches*size {
			t.Errorf("job-%d: %d", i, n)
		}
	}
}
