package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node/failover"
	"github.com/tenurehq/tenure/reference/node/ledgerhealth"
	"github.com/tenurehq/tenure/reference/node/pause"
)

// handClock is a clock that the test advances; its timers never fire.
type handClock struct{ at atomic.Int64 }

func handAt(at clock.Instant) *handClock {
	c := &handClock{}
	c.set(at)
	return c
}

func (c *handClock) Now() clock.Instant    { return clock.Instant(c.at.Load()) }
func (c *handClock) set(at clock.Instant)  { c.at.Store(int64(at)) }
func (c *handClock) pass(d time.Duration)  { c.at.Add(int64(d)) }
func (c *handClock) NewTimer() clock.Timer { return &handTimer{} }

type handTimer struct{ at clock.Instant }

func (t *handTimer) C() <-chan struct{}   { return nil }
func (t *handTimer) Set(at clock.Instant) { t.at = at }
func (t *handTimer) Stop()                {}

// The ledger counts as unreachable when calls have failed for longer than SinkPatience,
// counted from the first failure. Any answer ends that, and waiting goroutines are woken.
func TestSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := handAt(1)
		s := ledgerhealth.New(host, time.Second, slog.New(slog.DiscardHandler))
		if s.Lasting() != nil || s.OK() {
			t.Error("before the first call it is neither known to be bad nor to be good")
		}
		s.Saw(nil)
		host.pass(time.Hour) // this process was paused, or made no call
		if s.Lasting() != nil || !s.OK() {
			t.Error("silence is taken for a failure")
		}
		s.Saw(fmt.Errorf("%w: refused", ledgerapi.ErrUnavailable))
		host.pass(time.Second)
		s.Saw(ledgerapi.ErrUnknown)
		if err := s.Lasting(); err != nil {
			t.Errorf("within the patience: %v", err)
		}
		host.pass(1)
		if err := s.Lasting(); !errors.Is(err, ledgerapi.ErrUnknown) {
			t.Errorf("beyond the patience: %v", err)
		}
		woken := make(chan error, 1)
		go func() { woken <- s.Await(t.Context()) }()
		synctest.Wait()
		if len(woken) > 0 {
			t.Error("who waits for the ledger did not")
		}
		s.Saw(ledgerapi.ErrNotFound)
		if err := <-woken; err != nil || s.Lasting() != nil {
			t.Errorf("after an answer: %v", err)
		}
		s.Saw(ledgerapi.ErrUnavailable)
		gone, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		if err := s.Await(gone); err == nil || err.Error() != "enough" {
			t.Errorf("who waits and is told not to: %v", err)
		}
	})
}

// If the ledger answers reads but no writes, the term that noticed it ends after
// SinkPatience. Successful reads do not count for writes.
func TestUnwritable(t *testing.T) {
	host := handAt(1)
	s := ledgerhealth.New(host, time.Second, slog.New(slog.DiscardHandler))
	s.Wrote(fmt.Errorf("%w: disk full", ledgerapi.ErrUnavailable))
	host.pass(time.Second)
	s.Saw(nil)
	if err := s.Writable(); err != nil {
		t.Errorf("within the patience: %v", err)
	}
	host.pass(1)
	s.Saw(nil)
	if err := s.Writable(); !errors.Is(err, ledgerapi.ErrUnavailable) || s.Lasting() != nil {
		t.Errorf("beyond the patience: %v, %v", err, s.Lasting())
	}
	s.Wrote(ledgerapi.ErrNotFound)
	if err := s.Writable(); err != nil {
		t.Errorf("after an answer: %v", err)
	}
	s.Wrote(ledgerapi.ErrUnknown)
	host.pass(time.Minute)
	s.Begin()
	if err := s.Writable(); err != nil {
		t.Errorf("what the term before saw counts: %v", err)
	}
}

// The pause meter notices that the process did not run.
func TestPauseMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := handAt(1)
		p := &pause.Meter{Clock: host}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.Run(ctx)
		synctest.Wait()
		host.pass(700 * time.Millisecond)
		time.Sleep(pause.Every) // of the bubble's time: one measurement
		synctest.Wait()
		if got := p.Longest(); got < 690*time.Millisecond || got > 700*time.Millisecond {
			t.Errorf("a pause of 690 ms was measured as %v", got)
		}
	})
}

func testNode(t *testing.T) (*Node, *handClock) {
	t.Helper()
	n, err := New(Config{
		ID: "n1", Group: "billing", Listen: "127.0.0.1:0", Store: StoreMem, Ledger: "http://127.0.0.1:1", RTO: 30 * time.Second,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	host := handAt(clock.Instant(time.Hour))
	n.host = host
	return n, host
}

// A failover is divided into consecutive phases without a gap: from the old leader's last
// write, by the ledger's clock, through the vacancy, the term, the load and the first write
// to the first answer. Phases longer than their share are marked.
func TestPhases(t *testing.T) {
	n, host := testNode(t)
	cfg := failover.Config{Node: "n1", Group: "billing", Target: 30 * time.Second, Host: host, Log: n.Config.Log, Ended: n.metrics.Phase, Gap: n.metrics.Gap}
	at := func(ms int) clock.Instant { return clock.Instant(time.Hour).Add(time.Duration(ms) * time.Millisecond) }
	before := &failover.Vacancy{Token: 7, At: at(10_000), Reason: "expired", Holder: "n0"}
	// The ledger's clock is at 5,000,000 ms when the host's is at an hour.
	const ledgerMS = 5_000_000
	r := failover.New(cfg, 8, at(10_500), before, failover.Past{LastWrite: ledgerMS, Offset: time.Hour - ledgerMS*time.Millisecond, Began: at(10_900), AtMS: 1})
	for _, p := range []struct {
		phase string
		ms    int
	}{{api.PhaseLoad, 11_000}, {api.PhaseWarm, 12_000}, {api.PhaseWarm, 12_500}, {api.PhaseFound, 18_000}} {
		host.set(at(p.ms))
		r.Reached(p.phase)
	}
	f := r.State()
	var got []string
	for _, p := range f.Phases {
		got = append(got, fmt.Sprintf("%s %d of %d %v", p.Name, p.TookUS/1000, p.ShareUS/1000, p.Over))
	}
	want := "detect 10000 of 9000 true; elect 500 of 1000 false; seal_load 500 of 2000 false; warm 1000 of 10000 false; found 6000 of 5000 true"
	if strings.Join(got, "; ") != want || f.TotalUS != 18_000_000 || !f.Over || f.Cause != "expired" || f.Previous != "n0" || f.GapUS != nil {
		t.Errorf("%s\nin %+v, want\n%s", strings.Join(got, "; "), f, want)
	}

	// After an orderly handover the gap is measured on one clock.
	h := &api.Handover{Node: "n0", Token: 7, StoppedAt: at(10_400), Reason: "transferred"}
	f = failover.New(cfg, 8, at(10_500), before, failover.Past{LastWrite: ledgerMS, Began: at(10_520), Handover: h}).State()
	if f.GapUS == nil || *f.GapUS != 120_000 || f.Cause != "transferred" {
		t.Errorf("a Handover: %+v", f)
	}
	// A record of an older term does not apply to this change.
	h.Token = 6
	if f = failover.New(cfg, 8, at(10_500), before, failover.Past{LastWrite: ledgerMS, Began: at(10_520), Handover: h}).State(); f.GapUS != nil {
		t.Errorf("the handover of another term: %+v", f)
	}
	if f = failover.New(cfg, 8, at(10_500), before, failover.Past{}).State(); f.Cause != "first" || f.TotalUS != 500_000 {
		t.Errorf("the first leader: %+v", f)
	}
}

// The newest failovers are kept, each once.
func TestMerge(t *testing.T) {
	var all []api.Failover
	for token := range 150 {
		for range 2 {
			all = failover.Merge(all, api.Failover{Token: fence.Token(1 + token)})
		}
	}
	if len(all) != 100 || all[0].Token != 51 || all[99].Token != 150 {
		t.Errorf("%d kept, from %d", len(all), all[0].Token)
	}
}

// An invalid configuration is refused with the flag and the reason.
func TestValidate(t *testing.T) {
	good := Config{ID: "n1", Group: "billing", Listen: "127.0.0.1:0", Store: "etcd://127.0.0.1:1", Ledger: "http://127.0.0.1:2"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"id: \"\"":                   func(c *Config) { c.ID = "" },
		"id: \"N 1\"":                func(c *Config) { c.ID = "N 1" },
		"group: ":                    func(c *Config) { c.Group = "../x" },
		"is not host:port":           func(c *Config) { c.Listen = "here" },
		"can be reached from other":  func(c *Config) { c.Listen = "0.0.0.0:1" },
		"advertise: ":                func(c *Config) { c.Advertise = "here:1" },
		"ledger: the URL of":         func(c *Config) { c.Ledger = "" },
		"ledger: \"x\" is not":       func(c *Config) { c.Ledger = "x" },
		"workers: \"w\" is not":      func(c *Config) { c.Workers = []string{"w"} },
		"\"zk://a\": unknown engine": func(c *Config) { c.Store = "zk://a" },
		"store: store is \"\"":       func(c *Config) { c.Store = "" },
		"etcd://host:port,host:port": func(c *Config) { c.Store = "etcd://user:secret@a" },
		"peers: is for":              func(c *Config) { c.Peers = map[string]string{"a": "b:1"} },
		"Raft has no lease":          func(c *Config) { c.Store, c.TTL = StoreRaft, time.Second },
		"data directory": func(c *Config) {
			c.Store, c.Peers = StoreRaft, map[string]string{"n1": "127.0.0.1:1"}
		},
		"Misses × Beat = 3 × 2s": func(c *Config) { c.TTL, c.Beat = 3*time.Second, 2*time.Second },
		"tick: ":                 func(c *Config) { c.Tick = -1 },
		"raise --rto to 8s":      func(c *Config) { c.TTL, c.RTO = 2*time.Second, time.Second },
		"is not the URL of a l":  func(c *Config) { c.Ledger = "http://user:secret@127.0.0.1:2" },
		"is not the URL of a w":  func(c *Config) { c.Workers = []string{"http://w/" + strings.Repeat("x", 300)} },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
