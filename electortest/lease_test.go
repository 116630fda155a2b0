package electortest

import (
	"flag"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
	"github.com/tenurehq/tenure/tenuretest"
)

// process is a simulated process.
type process struct {
	*tenuretest.Node
	elector tenure.Elector
}

func (p process) Elector() tenure.Elector { return p.elector }

// ttl is long enough for a machine that is busy with other tests.
const ttl = time.Second

func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		_ = flag.Set("test.parallel", "8") // they mostly wait
	}
	os.Exit(m.Run())
}

// leaseEngine is package lease over a store in memory.
func leaseEngine(st store.Store) Engine {
	timing := lease.Timing{TTL: ttl}
	return Engine{
		Start: func(t *testing.T, group, id string) Process {
			n, err := tenuretest.NewNode(st, lease.Config{
				Candidate: tenure.Candidate{ID: id},
				Scope:     store.Scope{group},
				Timing:    timing,
				Log:       slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			return process{n, n.Elector(group)}
		},
		Lease:    ttl,
		Failover: 2 * ttl,
		Transfer: true,
		Parallel: true,
	}
}

// Package lease passes the tests.
func TestLease(t *testing.T) {
	store := mem.New(mem.Options{})
	t.Cleanup(store.Close)
	Run(t, leaseEngine(store))
}

// An invalid Engine is refused before anything runs.
func TestEngineValidate(t *testing.T) {
	store := mem.New(mem.Options{})
	defer store.Close()
	good := leaseEngine(store)
	if err := good.validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Engine){
		"start":    func(e *Engine) { e.Start = nil },
		"lease":    func(e *Engine) { e.Lease = 0 },
		"failover": func(e *Engine) { e.Failover = e.Lease },
	} {
		e := good
		spoil(&e)
		if e.validate() == nil {
			t.Errorf("%s: an engine without it passes", name)
		}
	}
}
