package redis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/redis"
	"github.com/tenurehq/tenure/store/storetest"
)

// twice makes Redis grant one token to two sessions. The first is granted by a master, which is
// cut off from its replica; then the replica becomes the master and grants the same to another
// process, while the first master goes on serving the first process.
func twice(t *testing.T) (first *tenure.Term, second *lease.Elector, at *redis.Store) {
	t.Helper()
	p := newPair(t)
	first = storetest.Lead(t, storetest.Candidate(t, open(t, p.master.Addr()), "a", 30*time.Second, "g"))
	p.promote(t)
	at = open(t, p.replica.Addr())
	return first, storetest.Candidate(t, at, "b", 30*time.Second, "g"), at
}

// A failover that loses an acknowledged grant gives two sessions the same token. Without a fence
// both write.
func TestFailoverUnfenced(t *testing.T) {
	first, b, _ := twice(t)
	second := storetest.Lead(t, b)
	if first.Token() != second.Token() || first.Stamp().Session == second.Stamp().Session {
		t.Errorf("the stamps are %+v and %+v, want one token of two sessions", first.Stamp(), second.Stamp())
	}
	file := filepath.Join(t.TempDir(), "report")
	for _, term := range []*tenure.Term{first, second, first} {
		if err := term.Check(); err != nil {
			t.Fatalf("%s does not believe that it leads: %v", term.Candidate().ID, err)
		}
		if err := os.WriteFile(file, []byte(term.Candidate().ID), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "a" {
		t.Errorf("the file has %q, %v; want that the first leader wrote over the second one's", got, err)
	}
}

// A fenced sink knows the session that its token belongs to. It refuses the second session before
// it works, and the store grants nothing more until an operator raises the epoch.
func TestFailoverFenced(t *testing.T) {
	first, b, at := twice(t)
	dir, err := filefence.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Seal(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err = tenure.Lead(ctx, b, func(context.Context, *tenure.Term) error {
		t.Error("the second leader works")
		return tenure.ErrDone
	}, tenure.WithSinks(dir))
	var clone *fence.CloneError
	if !errors.Is(err, tenure.ErrDataLost) || !errors.As(err, &clone) || clone.Stamp.Token != first.Token() || clone.Mark.Session != first.Stamp().Session {
		t.Errorf("the second leader is told %v", err)
	}
	if err := dir.WriteFile(ctx, first.Stamp(), "report", []byte("a"), 0o600); err != nil {
		t.Errorf("the first leader cannot write: %v", err)
	}
	if m, err := at.Meta(ctx); err != nil || !m.Rewound {
		t.Errorf("meta after the refusal: %+v, %v", m, err)
	}
	if _, err := at.Open(ctx, tenure.Candidate{ID: "c"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}}); !errors.Is(err, store.ErrRewound) {
		t.Errorf("another candidate is told %v", err)
	}
	raiseEpoch(t, at)
	next := storetest.Lead(t, storetest.Candidate(t, at, "c", 30*time.Second, "g"))
	if err := next.Seal(ctx, dir); err != nil {
		t.Errorf("the leader after the raise: %v", err)
	}
	var stale *fence.StaleError
	if err := dir.WriteFile(ctx, first.Stamp(), "report", []byte("late"), 0o600); !errors.As(err, &stale) {
		t.Errorf("a late write of the first leader: %v", err)
	}
}

// The process that was granted a token tells everybody when it finds that the new master does not
// know it, though others have gone on without it.
func TestFailoverNoticed(t *testing.T) {
	p := newPair(t)
	a := open(t, p.clients.Addr())
	session, err := a.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Acquire(t.Context(), session.ID, store.Record{Group: "g"}); err != nil {
		t.Fatal(err)
	}
	p.failover(t)
	b := open(t, p.master.Addr())
	storetest.Lead(t, storetest.Candidate(t, b, "b", 30*time.Second, "g"))
	for range 10 {
		if _, err := b.Open(t.Context(), tenure.Candidate{ID: "c"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}}); err != nil {
			t.Fatal(err)
		}
	}
	storetest.Eventually(t, func() error {
		_, err := a.Meta(t.Context())
		return err
	})
	if m, err := b.Meta(t.Context()); err != nil || !m.Rewound || !strings.Contains(m.Why, "the engine changed") {
		t.Errorf("%+v, %v", m, err)
	}
}

// A failover that lost only keep-alives is no loss of data: the leader leads on.
func TestFailoverLostBeats(t *testing.T) {
	p := newPair(t)
	p.link.Heal()
	s := open(t, p.clients.Addr())
	session, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}})
	must(t, err)
	_, err = s.Acquire(t.Context(), session.ID, store.Record{Group: "g"})
	must(t, err)
	p.replicated(t)
	p.link.Cut()
	for range 3 {
		_, err := s.KeepAlive(t.Context(), session.ID)
		must(t, err)
	}
	p.failover(t)
	storetest.Eventually(t, func() error {
		_, err := s.KeepAlive(t.Context(), session.ID)
		return err
	})
	if m, err := s.Meta(t.Context()); err != nil || m.Rewound {
		t.Errorf("%+v, %v", m, err)
	}
	if v, err := s.Read(t.Context(), "g"); err != nil || v.State != tenure.Led || v.Holder != session.ID {
		t.Errorf("%+v, %v", v, err)
	}
}

// A sentinel replaces a master that was killed. If the replica has every grant, the leader leads
// on, though keep-alives were lost; then it hands over, with a larger token.
func TestSentinel(t *testing.T) {
	const name = "mymaster"
	master := servertest.Redis(t)
	replica := servertest.Replica(t, master.Addr())
	cfg := redis.Config{Master: name}
	for _, s := range servertest.Sentinels(t, 3, name, master.Addr()) {
		cfg.Addrs = append(cfg.Addrs, s.Addr())
		c := goredis.NewSentinelClient(&goredis.Options{Addr: s.Addr()})
		t.Cleanup(func() { _ = c.Close() })
		storetest.Eventually(t, func() error {
			replicas, err := c.Replicas(t.Context(), name).Result()
			if err == nil && len(replicas) != 1 {
				err = fmt.Errorf("the sentinel knows %d replicas", len(replicas))
			}
			return err
		})
		storetest.Eventually(t, func() error { return c.CkQuorum(t.Context(), name).Err() })
	}
	const ttl = 20 * time.Second
	a, b := openWith(t, cfg), openWith(t, cfg)
	term := storetest.Lead(t, storetest.Candidate(t, a, "a", ttl, "g"))
	next := make(chan *tenure.Term, 1)
	waiting := storetest.Candidate(t, b, "b", ttl, "g")
	go func() {
		won, err := waiting.Campaign(t.Context())
		if err != nil {
			t.Error(err)
		}
		next <- won
	}()
	storetest.Eventually(t, func() error {
		all, err := a.Sessions(t.Context(), store.Scope{"g"}, store.Page{})
		if err == nil && len(all) != 2 {
			err = fmt.Errorf("%d sessions", len(all))
		}
		return err
	})
	(&pair{master: master, replica: replica}).replicated(t)
	master.Kill()
	began := time.Now()
	storetest.Eventually(t, func() error {
		_, err := a.Read(t.Context(), "g")
		return err
	})
	t.Logf("served again %v after the master was killed", time.Since(began))
	for _, s := range []*redis.Store{a, b} {
		if m, err := s.Meta(t.Context()); err != nil || m.Rewound {
			t.Fatalf("after the failover: %+v, %v", m, err)
		}
	}
	if err := term.Check(); err != nil {
		t.Fatalf("the leader lost its term: %v", err)
	}
	if err := term.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case won := <-next:
		if won == nil || won.Token() <= term.Token() {
			t.Errorf("%+v follows token %d", won, term.Token())
		}
	case <-time.After(30 * time.Second):
		t.Error("nobody leads on the new master")
	}
}
