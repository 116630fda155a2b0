package lease_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// timed changes the timing and nothing else.
func timed(change func(*lease.Timing)) func(*lease.Config) {
	return func(c *lease.Config) {
		c.Timing = c.Timing.Resolve()
		change(&c.Timing)
	}
}

// What cannot work is refused when the node is made, by an error that names the
// field, the value and the rule; nothing was started by then: no call to the
// store, no goroutine.
func TestBadConfig(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*lease.Config)
		want   []string
	}{
		{"no candidate", func(c *lease.Config) { c.Candidate.ID = "" },
			[]string{`candidate id is ""`, "1 to 63 of a-z 0-9 . _ -"}},
		{"long candidate", func(c *lease.Config) { c.Candidate.ID = strings.Repeat("a", 64) },
			[]string{`candidate id is "aaaa`, "1 to 63 of a-z 0-9 . _ -"}},
		{"candidate in capitals", func(c *lease.Config) { c.Candidate.ID = "Node-1" },
			[]string{`candidate id is "Node-1"`, "beginning with a letter or digit"}},
		{"candidate begins with a dash", func(c *lease.Config) { c.Candidate.ID = "-a" },
			[]string{`candidate id is "-a"`, "beginning with a letter or digit"}},
		{"candidate with a slash", func(c *lease.Config) { c.Candidate.ID = "a/../b" },
			[]string{`candidate id is "a/../b"`}},
		{"candidate with a newline", func(c *lease.Config) { c.Candidate.ID = "a\nb" },
			[]string{`candidate id is "a\nb"`}},
		{"candidate with a NUL", func(c *lease.Config) { c.Candidate.ID = "a\x00" },
			[]string{`candidate id is "a\x00"`}},
		{"candidate beyond ASCII", func(c *lease.Config) { c.Candidate.ID = "knoten-ä" },
			[]string{`candidate id is "knoten-ä"`}},
		{"long address", func(c *lease.Config) { c.Candidate.Address = strings.Repeat("x", 513) },
			[]string{"candidate address is", "at most 512 bytes, not 513"}},
		{"large metadata", func(c *lease.Config) { c.Candidate.Metadata = map[string]string{"k": strings.Repeat("v", 4096)} },
			[]string{"candidate metadata", "at most 4096 bytes in all, not 4097"}},

		{"no scope", func(c *lease.Config) { c.Scope = nil },
			[]string{"scope", "names no group"}},
		{"wide scope", func(c *lease.Config) { c.Scope = make(store.Scope, store.MaxScope+1) },
			[]string{"scope is 1025", "at most 1024 names"}},
		{"empty pattern", func(c *lease.Config) { c.Scope = store.Scope{"a", ""} },
			[]string{`scope is ""`, `followed by "*"`}},
		{"star inside", func(c *lease.Config) { c.Scope = store.Scope{"a*b"} },
			[]string{`scope is "a*b"`, `followed by "*"`}},
		{"two stars", func(c *lease.Config) { c.Scope = store.Scope{"a**"} },
			[]string{`scope is "a**"`}},
		{"pattern in capitals", func(c *lease.Config) { c.Scope = store.Scope{"Shard-*"} },
			[]string{`scope is "Shard-*"`}},
		{"long pattern", func(c *lease.Config) { c.Scope = store.Scope{strings.Repeat("s", 64) + "*"} },
			[]string{`scope is "ssss`, "1 to 63 of a-z"}},

		{"negative TTL", func(c *lease.Config) { c.TTL = -time.Second },
			[]string{"TTL = -1s", "must be from 20ms to 24h0m0s"}},
		{"TTL of a nanosecond", func(c *lease.Config) { c.TTL = 1 },
			[]string{"TTL = 1ns", "must be from 20ms to 24h0m0s"}},
		{"TTL of a year", func(c *lease.Config) { c.TTL = 365 * 24 * time.Hour },
			[]string{"TTL = 8760h0m0s", "must be from 20ms to 24h0m0s"}},
		{"TTL below the store's", func(c *lease.Config) { c.Timing = lease.Timing{TTL: 999 * time.Millisecond} },
			[]string{"ttl is 999ms", "this store grants no less than 1s"}},
		{"TTL above the store's", func(c *lease.Config) { c.Timing = lease.Timing{TTL: time.Hour + 1} },
			[]string{"ttl is 1h0m0.000000001s", "this store grants no more than 1h0m0s"}},
		{"beat above TTL", timed(func(t *lease.Timing) { t.Beat = 9 * time.Second }),
			[]string{"Misses × Beat = 3 × 9s = 27s must be less than", "7.64s"}},
		{"negative beat", timed(func(t *lease.Timing) { t.Beat = -1 }),
			[]string{"Beat = -1ns must be at least 1ms"}},
		{"negative misses", timed(func(t *lease.Timing) { t.Misses = -1 }),
			[]string{"Misses = -1 must be at least 1"}},
		{"drift of nine tenths", timed(func(t *lease.Timing) { t.Drift = 0.9 }),
			[]string{"Drift = 0.9 must be from 0 to below 0.5"}},
		{"negative margin", timed(func(t *lease.Timing) { t.Margin = -time.Millisecond }),
			[]string{"Margin = -1ms must not be negative"}},
		{"negative grace", timed(func(t *lease.Timing) { t.Grace = -time.Second }),
			[]string{"Grace = -1s must not be negative"}},
		{"grace above trust", timed(func(t *lease.Timing) { t.Grace = 8 * time.Second }),
			[]string{"Grace = 8s must be less than", "7.64s"}},
		{"exit without grace", func(c *lease.Config) { c.Exit = os.Exit },
			[]string{"grace is 0s", "must be positive where Exit is set"}},

		{"all at once", func(c *lease.Config) { *c = lease.Config{Timing: lease.Timing{TTL: -1, Misses: -1}, Exit: os.Exit} },
			[]string{"candidate id", "scope", "TTL = -1ns", "Misses = -1", "grace is 0s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				st := newCountingStore(limited{w.mem})
				cfg := w.config("a")
				tt.change(&cfg)
				before := runtime.NumGoroutine()
				n, err := lease.New(st, cfg)
				if n != nil || err == nil {
					w.Fatalf("accepted: %v, %v", n, err)
				}
				if !errors.Is(err, store.ErrInvalid) {
					w.Errorf("%v is not an ErrInvalid", err)
				}
				for _, part := range tt.want {
					if !strings.Contains(err.Error(), part) {
						w.Errorf("%q does not say %q", err, part)
					}
				}
				if len(err.Error()) > 2000 {
					w.Errorf("the message has %d bytes", len(err.Error()))
				}
				if after := runtime.NumGoroutine(); after > before || st.total()+st.counted(watch) != 0 {
					w.Errorf("started: %d goroutines, %d calls", after-before, st.total())
				}
			})
		})
	}
}

// limited is a store with limits of its own: a second to an hour.
type limited struct{ store.Store }

func (limited) Caps() store.Caps {
	return store.Caps{MinTTL: time.Second, MaxTTL: time.Hour, Batch: 16}
}

// A store that is not there is refused, also when it is a nil pointer in an
// interface.
func TestNoStore(t *testing.T) {
	cfg := lease.Config{Candidate: tenure.Candidate{ID: "a"}, Scope: store.Scope{"*"}}
	for name, st := range map[string]store.Store{"nil": nil, "nil pointer": (*mem.Store)(nil)} {
		n, err := lease.New(st, cfg)
		if n != nil || !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), "store: must not be nil") {
			t.Errorf("%s: %v, %v", name, n, err)
		}
	}
}

// What is left out gets its default: a TTL of zero is Default's, and so is a
// number of misses of zero; and the edges of the rules are inside.
func TestGoodConfig(t *testing.T) {
	for name, change := range map[string]func(*lease.Config){
		"nothing but names":  func(c *lease.Config) { c.Timing = lease.Timing{} },
		"misses zero":        timed(func(t *lease.Timing) { t.Misses = 0 }),
		"one letter":         func(c *lease.Config) { c.Candidate.ID = "a" },
		"63 letters":         func(c *lease.Config) { c.Candidate.ID = strings.Repeat("a", 63) },
		"every kind of sign": func(c *lease.Config) { c.Candidate.ID = "0a.b_c-" },
		"4096 of metadata":   func(c *lease.Config) { c.Candidate.Metadata = map[string]string{"k": strings.Repeat("v", 4095)} },
		"1024 names":         func(c *lease.Config) { c.Scope = strings.Split(strings.Repeat("a ", 1023)+"a", " ") },
		"least TTL":          func(c *lease.Config) { c.Timing = lease.Timing{TTL: time.Second} },
		"most TTL":           func(c *lease.Config) { c.Timing = lease.Timing{TTL: time.Hour} },
		"exit with grace":    func(c *lease.Config) { c.Exit, c.Grace = os.Exit, time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				cfg := w.config("a")
				change(&cfg)
				n, err := lease.New(limited{w.mem}, cfg)
				if err != nil {
					w.Fatal(err)
				}
				if err := n.Close(context.Background()); err != nil {
					w.Error(err)
				}
			})
		})
	}
}

// A group that cannot be is refused by name, and so is one that the node does
// not stand for.
func TestBadGroup(t *testing.T) {
	bubble(t, func(w *world) {
		st := newCountingStore(w.mem)
		n := w.node(st, "a", func(c *lease.Config) { c.Scope = store.Scope{"billing", "shard-*"} })
		for _, tt := range []struct{ group, rule string }{
			{"", "1 to 63"},
			{strings.Repeat("g", 64), "1 to 63"},
			{"Billing", "a-z"},
			{"shard-*", "a-z"},
			{".hidden", "beginning with a letter or digit"},
			{"shard/1", "a-z"},
			{"shard 1", "a-z"},
			{"billing2", "not in the scope of this node: billing, shard-*"},
			{"shard", "not in the scope of this node: billing, shard-*"},
		} {
			e, err := n.Elector(tt.group)
			if e != nil || !errors.Is(err, store.ErrInvalid) {
				w.Errorf("%q: %v, %v", tt.group, e, err)
				continue
			}
			for _, part := range []string{"group is \"" + tt.group[:min(20, len(tt.group))], tt.rule} {
				if !strings.Contains(err.Error(), part) {
					w.Errorf("%q: %q does not say %q", tt.group, err, part)
				}
			}
		}
		for _, group := range []string{"billing", "shard-", "shard-1"} {
			if e, err := n.Elector(group); err != nil || e.Group() != group {
				w.Errorf("%q: %v, %v", group, e, err)
			}
		}
		if st.total()+st.counted(watch) != 0 {
			w.Errorf("%d calls to the store before anybody campaigned", st.total())
		}
	})
}
