package etcd_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/storetest"
)

// raw is a client of etcd itself: an operator's, or the test's own eyes.
func raw(t *testing.T, endpoints []string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func leases(t *testing.T, c *clientv3.Client) []clientv3.LeaseStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := c.Leases(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return r.Leases
}

// eventually waits for what another process does in its own time.
func eventually(t *testing.T, within time.Duration, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(within); ; {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", within, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// An Open whose replies are lost uses one lease, however often it is retried. The session
// that a retry returns has its whole TTL, though its lease was granted long before.
func TestOpenRepliesLost(t *testing.T) {
	cluster := enginetest.Cluster(t, 1, enginetest.FastTicks())
	proxy := cluster.Members[0].Proxy()
	s := open(t, []string{proxy.Endpoint()})
	etcd := raw(t, cluster.Endpoints())
	const ttl = 8 * time.Second
	try := func(within time.Duration) (store.Session, error) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return s.Open(ctx, tenure.Candidate{ID: "a"}, ttl, store.OpenOptions{Scope: store.Scope{"g"}, Instance: "an-instance-of-the-candidate", Attempt: "1"})
	}
	if _, err := s.Meta(t.Context()); err != nil { // the connection is there
		t.Fatal(err)
	}
	proxy.CutOneWay(enginetest.Down)
	for began := time.Now(); time.Since(began) < ttl/2; {
		if n, err := try(ttl / 16); err == nil {
			t.Fatalf("opened %+v without a reply", n)
		}
	}
	proxy.Heal()
	session, err := try(10 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	all := leases(t, etcd)
	if len(all) != 1 {
		t.Errorf("%d leases for one session", len(all))
	}
	left, err := etcd.TimeToLive(t.Context(), all[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if session.TTL != ttl || left.TTL < int64(ttl/time.Second)*3/4 {
		t.Errorf("a TTL of %v is promised, and the lease has %d s left", session.TTL, left.TTL)
	}
}

// The id of a session that ended is not used again by a retry of the Open that made it,
// though the reply was lost and the lease still exists.
func TestOpenNeverReusesAnID(t *testing.T) {
	cluster := enginetest.Cluster(t, 1, enginetest.FastTicks())
	proxy := cluster.Members[0].Proxy()
	s, other := open(t, []string{proxy.Endpoint()}), open(t, cluster.Endpoints())
	options := store.OpenOptions{Scope: store.Scope{"g"}, Instance: "an-instance-of-the-candidate", Attempt: "1"}
	if _, err := s.Meta(t.Context()); err != nil {
		t.Fatal(err)
	}
	sessions := func() []store.Session {
		all, err := other.Sessions(t.Context(), store.Scope{"*"}, store.Page{})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	// The reply to the grant arrives, the one to the transaction does not: cut when the
	// session exists, and stop waiting.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	proxy.Delay(enginetest.Down, 500*time.Millisecond)
	done := make(chan error, 1)
	go func() {
		_, err := s.Open(ctx, tenure.Candidate{ID: "a"}, time.Minute, options)
		done <- err
	}()
	eventually(t, 20*time.Second, func() error {
		if len(sessions()) == 0 {
			return errors.New("no session")
		}
		return nil
	})
	cancel()
	if err := <-done; err == nil {
		t.Fatal("the reply was not lost")
	}
	proxy.Heal()
	was := sessions()[0].ID
	// It was closed, and its lease is not revoked yet.
	if r, err := raw(t, cluster.Endpoints()).Delete(t.Context(), "/tenure/beat/"+string(was)); err != nil || r.Deleted != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	again, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Minute, options)
	if err != nil {
		t.Fatal(err)
	}
	if again.ID == was {
		t.Errorf("session %q ended and was opened again", was)
	}
	if all := sessions(); len(all) != 1 || all[0].ID != again.ID {
		t.Errorf("listed: %+v, want %q alone", all, again.ID)
	}
	if _, err := s.KeepAlive(t.Context(), again.ID); err != nil {
		t.Error(err)
	}
}

// A leader that gets no replies any more frees its group when its trust ends: its Close
// gets through, though it is never answered.
func TestCloseRepliesLost(t *testing.T) {
	cluster := enginetest.Cluster(t, 1, enginetest.FastTicks())
	timing := lease.Timing{TTL: 4 * time.Second}
	// Its own measure: from the end of trust to the next leader. An idle machine needs
	// 0.6 s; what must not happen is that everybody waits for the TTL.
	const within = 2 * time.Second
	for round := range storetest.Rounds(t, 1) {
		proxy := cluster.Members[0].Proxy()
		a := storetest.Elector(t, storetest.Node(t, open(t, []string{proxy.Endpoint()}), "a", timing, "g"), "g")
		b := storetest.Elector(t, storetest.Node(t, open(t, cluster.Endpoints()), "b", timing, "g"), "g")
		term := storetest.Lead(t, a)
		next := make(chan *tenure.Term, 1)
		go func() {
			won, err := b.Campaign(t.Context())
			if err != nil {
				t.Error(err)
			}
			next <- won
		}()
		storetest.Wait(t, timing.TTL/4)
		proxy.CutOneWay(enginetest.Down)
		<-term.Context().Done()
		ended := time.Now()
		go func() { _ = term.Resign(t.Context()) }() // its work returns at once
		won := <-next
		took := time.Since(ended)
		t.Logf("round %d: nobody led for %v after the end of trust", round, took)
		if took > within {
			t.Errorf("round %d: nobody led for %v after the end of trust", round, took)
		}
		proxy.Heal()
		if err := won.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
