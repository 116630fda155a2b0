package etcd_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/storetest"
)

// After an outage that outlasts every session a fleet has a leader again soon, and each
// candidate has one session and one lease. TENURE_CANDIDATES sets the number of
// candidates, each with connections of its own, for the bars: 3 s up to 500 and 5 s up to
// 1,000, on an idle machine.
func TestOutage(t *testing.T) {
	candidates, ttl, outage, bar := 20, 4*time.Second, 7*time.Second, 5*time.Second
	if n, err := strconv.Atoi(os.Getenv("TENURE_CANDIDATES")); err == nil {
		candidates, ttl, outage = n, 8*time.Second, 15*time.Second
		if n <= 500 {
			bar = 3 * time.Second
		}
	} else if testing.Short() {
		t.Skip("it takes half a minute")
	}
	cluster := enginetest.Cluster(t, 1)
	ctx, stop := context.WithCancel(t.Context())
	began := make(chan time.Time, candidates)
	terms := make(chan *tenure.Term, candidates)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for i := range candidates {
		s := open(t, cluster.Endpoints())
		n, err := lease.New(s, lease.Config{
			Candidate: tenure.Candidate{ID: fmt.Sprintf("n%d", i)}, Scope: store.Scope{"g"},
			Timing: lease.Timing{TTL: ttl}, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		e := storetest.Elector(t, n, "g")
		all.Go(func() {
			for ctx.Err() == nil {
				term, err := e.Campaign(ctx)
				if err != nil {
					break
				}
				began <- time.Now()
				terms <- term
				select {
				case <-term.Context().Done():
				case <-ctx.Done():
				}
				_ = term.Resign(ctx)
			}
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = n.Close(closing)
		})
	}
	// list names the sessions and leases that are not in seen.
	seen := map[string]bool{}
	other, client := open(t, cluster.Endpoints()), raw(t, cluster.Endpoints())
	list := func() (sessions, leased []string) {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		found, err := other.Sessions(ctx, store.Scope{"*"}, store.Page{})
		if err != nil {
			t.Log(err)
		}
		for _, n := range found {
			if !seen[string(n.ID)] {
				sessions = append(sessions, string(n.ID))
			}
		}
		for _, l := range leases(t, client) {
			if id := fmt.Sprintf("%016x", int64(l.ID)); !seen[id] {
				leased = append(leased, id)
			}
		}
		return sessions, leased
	}
	most := 0
	complete := func() error {
		sessions, leased := list()
		if most = max(most, len(leased)); len(sessions) != candidates {
			return fmt.Errorf("%d sessions of %d candidates", len(sessions), candidates)
		}
		return nil
	}
	eventually(t, 2*time.Minute, complete)
	<-began
	first := <-terms
	storetest.Wait(t, ttl)

	_, leased := list()
	for _, id := range leased {
		seen[id] = true
	}
	most = 0
	member := cluster.Members[0]
	member.Pause()
	storetest.Wait(t, outage)
	if first.Check() == nil {
		t.Fatal("the leader outlived the outage")
	}
	member.Resume()
	back := time.Now()
	var led time.Time
	select {
	case led = <-began:
	case <-time.After(2 * time.Minute):
		t.Fatal("no leader 2 min after the outage")
	}
	eventually(t, 2*time.Minute, complete)
	t.Logf("%d candidates: a leader %v after the outage, all sessions after %v; at most %d leases", candidates, led.Sub(back), time.Since(back), most)
	if most > candidates*12/10 {
		t.Errorf("%d leases for %d candidates", most, candidates)
	}
	if took := led.Sub(back); took > bar {
		t.Errorf("%d candidates: a leader only %v after the outage, bar %v", candidates, took, bar)
	}
}
