package etcd_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/tenuretest"
)

// ttl is long enough for a busy machine.
const ttl = 8 * time.Second

func standby(t *testing.T, endpoints []string, id string) *tenuretest.Node {
	t.Helper()
	n, err := tenuretest.NewNode(open(t, endpoints), lease.Config{
		Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{"g"}, Timing: lease.Timing{TTL: ttl}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = n.Close(ctx)
	})
	return n
}

// Transfers back and forth, and then the death of the leader, leave the group without a
// leader for a moment and for a TTL. TENURE_HANDOVERS=300 makes them every second for
// five minutes and measures the bars, which need an idle machine: 100 ms for each
// transfer, and a TTL and a second for the death.
func TestHandovers(t *testing.T) {
	rounds, pause := 5, 50*time.Millisecond
	most, slack := 10*time.Second, 10*time.Second
	if s := os.Getenv("TENURE_HANDOVERS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		rounds, pause, most, slack = n, time.Second, 100*time.Millisecond, time.Second
	}
	endpoints := enginetest.Cluster(t, 1).Endpoints()
	nodes := map[string]*tenuretest.Node{"a": standby(t, endpoints, "a"), "b": standby(t, endpoints, "b")}
	other := map[string]string{"a": "b", "b": "a"}
	type begun struct {
		*tenure.Term
		by string
		at time.Time
	}
	begins := make(chan begun, 1)
	for id, n := range nodes {
		go func() {
			_ = tenure.Lead(t.Context(), n.Elector("g"), func(ctx context.Context, term *tenure.Term) error {
				begins <- begun{term, id, time.Now()}
				<-ctx.Done()
				return ctx.Err()
			}, tenure.WithLog(slog.New(slog.DiscardHandler)))
		}()
	}
	next := func() begun {
		t.Helper()
		select {
		case b := <-begins:
			return b
		case <-time.After(time.Minute):
			t.Fatal("nobody leads")
			panic("not reached")
		}
	}
	now := next()
	st := open(t, endpoints)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if line, err := st.Sessions(t.Context(), store.Scope{"g"}, store.Page{}); err == nil && len(line) == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the second candidate does not stand")
		}
	}
	var took []time.Duration
	for range rounds {
		time.Sleep(pause)
		start := time.Now()
		if err := now.TransferTo(t.Context(), other[now.by]); err != nil {
			t.Fatal(err)
		}
		b := next()
		if b.by != other[now.by] {
			t.Fatalf("%s leads after a transfer from %s", b.by, now.by)
		}
		took = append(took, b.at.Sub(start))
		now = b
	}
	slices.Sort(took)
	t.Logf("%d transfers: p50 %v, p99 %v, longest %v", rounds, took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	if longest := took[len(took)-1]; longest > most {
		t.Errorf("a transfer took %v, bar %v", longest, most)
	}
	start := time.Now()
	nodes[now.by].Crash()
	b := next()
	t.Logf("after the death of the leader: %v", b.at.Sub(start))
	if d := b.at.Sub(start); b.by != other[now.by] || d > ttl+slack {
		t.Errorf("%s leads %v after the death of %s, bar %v", b.by, d, now.by, ttl+slack)
	}
}

// After an operator has deleted all traces of a group's grants, nobody retries its way up to the token that
// the sink has seen: the first candidate stops, and nothing is granted any more until
// the epoch is raised.
func TestRecordDeleted(t *testing.T) {
	endpoints := enginetest.Cluster(t, 1).Endpoints()
	var sink tenuretest.Sink
	var old fence.Stamp
	a := standby(t, endpoints, "a")
	for range 3 {
		term, err := a.Elector("g").Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := term.Seal(t.Context(), &sink); err != nil {
			t.Fatal(err)
		}
		old = term.Stamp()
		if err := term.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	// With grant/g gone too, a fresh client cannot see that g was ever granted.
	for _, key := range []string{"/tenure/record/g", "/tenure/grant/g"} {
		if r, err := client.Delete(t.Context(), key); err != nil || r.Deleted != 1 {
			t.Fatalf("%s: %+v, %v", key, r, err)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ends := make(chan error, 2)
	began := make(chan *tenure.Term, 2)
	for _, id := range []string{"b", "c"} {
		e := standby(t, endpoints, id).Elector("g")
		go func() {
			ends <- tenure.Lead(ctx, e, func(ctx context.Context, term *tenure.Term) error {
				began <- term
				<-ctx.Done()
				return ctx.Err()
			}, tenure.WithSinks(&sink), tenure.WithLog(slog.New(slog.DiscardHandler)))
		}()
	}
	select {
	case err := <-ends:
		if !errors.Is(err, tenure.ErrDataLost) {
			t.Errorf("Lead returned %v", err)
		}
	case <-began:
		t.Fatal("work began")
	case <-time.After(time.Minute):
		t.Fatal("nobody noticed")
	}
	st := open(t, endpoints)
	if m, err := st.Meta(t.Context()); err != nil || !m.Rewound {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := st.Open(t.Context(), tenure.Candidate{ID: "d"}, ttl, store.OpenOptions{Scope: store.Scope{"g"}}); !errors.Is(err, store.ErrRewound) {
		t.Errorf("a session was opened: %v", err)
	}
	if _, err := st.RaiseEpoch(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	select {
	case term := <-began:
		if term.Token() <= old.Token {
			t.Errorf("token %d after %d", term.Token(), old.Token)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody leads after the raise")
	}
	if err := sink.Write(t.Context(), old, "late"); !errors.Is(err, fence.ErrRefused) {
		t.Errorf("a late write from before the loss: %v", err)
	}
}
