package kubernetes_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/store/kubernetes"
	"github.com/tenurehq/tenure/store/storetest"
)

// through is a way to the API server that can be cut.
func (c *cluster) through(t *testing.T, namespace string) (kubernetes.Config, *enginetest.Proxy) {
	t.Helper()
	p := enginetest.NewProxy(t, c.Addr())
	cfg := c.config(namespace)
	cfg.REST.Host = "https://" + p.Addr()
	return cfg, p
}

// A leader whose client is cut off stops believing before the next one begins: both beliefs are
// read on one clock.
func testNoOverlap(t *testing.T, c *cluster) {
	namespace := c.namespace(t)
	var ways [2]storetest.Way
	for i := range ways {
		cfg, p := c.through(t, namespace)
		ways[i] = storetest.Way{Store: open(t, cfg), Cut: p.Cut, Heal: p.Heal}
	}
	storetest.NoOverlap(t, 2*time.Second, ways, storetest.Rounds(t, 2))
}

// A client that is cut off gets errors within the deadline of each call; its watch ends, and
// begins again with a gap when the way is back.
func testCutOff(t *testing.T, c *cluster) {
	cfg, p := c.through(t, c.namespace(t))
	d, closes, err := kubernetes.NewDriver(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closes)
	began, ended := make(chan struct{}, 1), make(chan error, 1)
	watch := func() {
		for change, err := range d.Watch(t.Context(), time.Hour, "record/") {
			switch {
			case err != nil:
				ended <- err
			case change.Key == "":
				began <- struct{}{}
			}
		}
	}
	wait := func(what string, f func(timeout <-chan time.Time) bool) {
		t.Helper()
		if !f(time.After(time.Minute)) {
			t.Fatal(what + ": nothing for a minute")
		}
	}
	begins := func(timeout <-chan time.Time) bool {
		select {
		case <-began:
			return true
		case <-timeout:
			return false
		}
	}
	go watch()
	wait("the watch begins", begins)
	p.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	sent := time.Now()
	if _, err := d.List(ctx, "record/", "", 10); err == nil || time.Since(sent) > 10*time.Second {
		t.Errorf("cut off, a listing answers %v after %v", err, time.Since(sent))
	}
	wait("the watch ends", func(timeout <-chan time.Time) bool {
		select {
		case err := <-ended:
			t.Logf("the watch ended %v after the cut: %v", time.Since(sent), err)
			return true
		case <-timeout:
			return false
		}
	})
	p.Heal()
	go watch()
	wait("the watch begins again", begins)
}

// An API server that is killed, and an etcd below it that is stopped, end a term in time. When
// they are back the fleet goes on by itself, with a larger token, although an API server that
// starts refuses what it does not know to be allowed yet.
func TestServerLost(t *testing.T) {
	c := start(t)
	const ttl = 3 * time.Second
	e := storetest.Candidate(t, openSoon(t, c.user(t)), "a", ttl, "g")
	for _, fault := range []struct {
		name         string
		strike, heal func()
	}{
		{"killed", c.Kill, c.Start},
		{"etcd stopped", c.etcd.Members[0].Pause, c.etcd.Members[0].Resume},
	} {
		term := storetest.Lead(t, e)
		fault.strike()
		struck := time.Now()
		select {
		case <-term.Context().Done():
			if !errors.Is(context.Cause(term.Context()), tenure.ErrExpired) {
				t.Errorf("%s: the term ended with %v", fault.name, context.Cause(term.Context()))
			}
		case <-time.After(10 * ttl):
			t.Fatalf("%s: the leader still believes after %v", fault.name, time.Since(struck))
		}
		if term.Check() == nil {
			t.Errorf("%s: the leader still believes", fault.name)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		_ = term.Resign(short) // its work has stopped
		cancel()
		won := make(chan *tenure.Term)
		go func() {
			defer close(won)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			next, err := e.Campaign(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			won <- next
		}()
		fault.heal()
		again := <-won
		if again == nil {
			t.FailNow()
		}
		if again.Token() <= term.Token() {
			t.Errorf("%s: token %d after %d", fault.name, again.Token(), term.Token())
		}
		if err := again.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
