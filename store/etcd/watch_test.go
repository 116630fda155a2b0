package etcd_test

import (
	"context"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
)

// told waits until an observer has been told of a token.
func told(t *testing.T, leaders <-chan tenure.Leader, term *tenure.Term, within time.Duration) {
	t.Helper()
	limit := time.After(within)
	for {
		select {
		case l := <-leaders:
			if l.State == tenure.Led && l.Token == term.Token() {
				return
			}
		case <-limit:
			t.Fatalf("not told of token %d in %v", term.Token(), within)
		}
	}
}

// observe follows the leaders of a group until the test ends.
func observe(t *testing.T, e *lease.Elector) <-chan tenure.Leader {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	leaders := make(chan tenure.Leader, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for l, err := range e.Leaders(ctx) {
			if err == nil {
				leaders <- l
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return leaders
}

// A watch leaves a member that was killed, stopped or black-holed within seconds,
// and a new one does not wait for it: whoever watches learns who leads.
func TestWatchMoves(t *testing.T) {
	cluster := enginetest.Cluster(t, 3, enginetest.FastTicks())
	timing := lease.Timing{TTL: 5 * time.Second}
	const within = 8 * time.Second // twice the silence that is suffered, and a bit
	member := cluster.Members[0]
	proxy := member.Proxy()
	others := cluster.Endpoints()[1:]
	behind := append([]string{proxy.Endpoint()}, others...)
	a := elector(t, node(t, open(t, others), "a", timing, "g"), "g")
	for _, fault := range []struct {
		name         string
		strike, heal func()
	}{
		{"black-holed", proxy.Cut, proxy.Heal},
		{"killed", member.Kill, member.Restart},
		// The last: a leader of etcd that was stopped revokes living leases when it goes on.
		{"stopped", member.Pause, member.Resume},
	} {
		t.Run(fault.name, func(t *testing.T) {
			term := lead(t, a)
			seen := observe(t, elector(t, node(t, open(t, behind), "b", timing, "g"), "g"))
			late := open(t, behind)
			told(t, seen, term, within)
			fault.strike()
			defer fault.heal()
			if err := term.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
			term = lead(t, a)
			told(t, seen, term, within)
			told(t, observe(t, elector(t, node(t, late, "c", timing, "g"), "g")), term, within)
			if err := term.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}
