package service

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/store"
)

// A stream begins with the current state and sends every later change once, in order.
func TestWatch(t *testing.T) {
	in := serve(t, memStore(t))
	w := in.listen("/v1/groups/billing/watch", "")
	if e := w.expect("billing", "vacant", 0); !e.Snapshot {
		t.Errorf("the first event is no snapshot: %+v", e)
	}
	l := lead(in, "billing", "a")
	if e := w.expect("billing", "led", 1); e.Holder != "a" || e.Snapshot {
		t.Errorf("%+v", e)
	}
	resign(in, l)
	if e := w.expect("billing", "vacant", 1); e.Reason != "resigned" || e.Holder != "a" {
		t.Errorf("%+v", e)
	}
	lead(in, "billing", "b")
	w.expect("billing", "led", 2)
	late := in.listen("/v1/groups/billing/watch", "")
	if e := late.expect("billing", "led", 2); !e.Snapshot {
		t.Errorf("%+v", e)
	}
}

// A stream resumes at its cursor, on another instance too, after any number of changes that
// the record and the history still have. No change is sent twice or missed.
func TestWatchResumes(t *testing.T) {
	store := memStore(t)
	one, two := serve(t, store), serve(t, store)
	w := one.listen("/v1/groups/billing/watch", "")
	w.expect("billing", "vacant", 0)
	l := lead(one, "billing", "a")
	id := w.expect("billing", "led", 1).id
	w.close()
	resign(two, l)
	for range 20 { // more than a record keeps
		resign(two, lead(two, "billing", "b"))
	}
	again := two.listen("/v1/groups/billing/watch", id)
	again.expect("billing", "vacant", 1)
	for token := uint64(2); token <= 21; token++ {
		again.expect("billing", "led", token)
		id = again.expect("billing", "vacant", token).id
	}
	again.close()
	nothing := one.listen("/v1/groups/billing/watch", id)
	lead(two, "billing", "c")
	nothing.expect("billing", "led", 22)
}

// One stream can watch several groups; its ids have a position in each of them.
func TestWatchSeveral(t *testing.T) {
	store := memStore(t)
	in := serve(t, store)
	lead(in, "a", "n1")
	w := in.listen("/v1/watch?group=a&group=b", "")
	seen := map[string]string{}
	for range 2 {
		e := w.next()
		seen[e.Group] = e.State
	}
	if seen["a"] != "led" || seen["b"] != "vacant" {
		t.Errorf("snapshot: %v", seen)
	}
	lead(in, "b", "n2")
	id := w.expect("b", "led", 1).id
	w.close()
	lead(in, "c", "n2")
	resume := serve(t, store).listen("/v1/watch?group=a&group=b&group=c", id)
	if e := resume.expect("c", "led", 1); !e.Snapshot {
		t.Errorf("a group that the id does not name begins with a snapshot: %+v", e)
	}
	refused(in, 400, "no_group", "GET", "/v1/watch", nil)
	refused(in, 400, "bad_argument", "GET", "/v1/watch?"+manyGroups(feed.MaxGroups+1), nil)
}

func manyGroups(n int) string {
	q := url.Values{}
	for i := range n {
		q.Add("group", "g"+strings.Repeat("x", i%50)+string(rune('a'+i%26))+string(rune('a'+i/26)))
	}
	return q.Encode()
}

// turn acquires and releases a group.
func turn(t *testing.T, st store.Store, id store.SessionID, group string) {
	t.Helper()
	v, err := st.Read(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	held, err := st.Acquire(t.Context(), id, v.Record)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Release(t.Context(), id, "", store.Resigned, held[0]); err != nil {
		t.Fatal(err)
	}
}

// A cursor that is older than the history, or of another deployment, is answered with a reset
// and the current state.
func TestWatchReset(t *testing.T) {
	st := memStore(t)
	in := serve(t, st)
	old := want[Poll](in, 200, "GET", "/v1/groups/billing/watch?wait=1s", nil).Cursor
	s, err := st.Open(t.Context(), candidate("a"), time.Minute, store.OpenOptions{Scope: store.Scope{"billing"}})
	if err != nil {
		t.Fatal(err)
	}
	const terms = 2100 // the history of this engine has 1024
	for range terms {
		turn(t, st, s.ID, "billing")
	}
	foreign := feed.Cursor{Deployment: "elsewhere", Places: []feed.Place{{Group: "billing", Cursor: store.Cursor{Token: 1, State: 2}}}}.String()
	ahead := feed.Cursor{Deployment: "here", Places: []feed.Place{{Group: "billing", Cursor: store.Cursor{Token: 1 << 50, State: 2}}}}.String()
	for name, cursor := range map[string]string{"old": old, "foreign": foreign, "ahead": ahead} {
		w := in.listen("/v1/groups/billing/watch", cursor)
		if e := w.next(); e.kind != "reset" || e.Reason == "" {
			t.Errorf("%s: %+v, want a reset", name, e)
		}
		if e := w.expect("billing", "vacant", terms); !e.Snapshot {
			t.Errorf("%s: %+v", name, e)
		}
		refused(in, 410, "cursor_too_old", "GET", "/v1/groups/billing/watch?after="+cursor, nil)
	}
	refused(in, 400, "bad_cursor", "GET", "/v1/groups/billing/watch?after=x", nil)
}

// A long poll returns missed changes at once, otherwise it waits for the next change until
// its wait ends.
func TestPoll(t *testing.T) {
	store := memStore(t)
	in, other := serve(t, store), serve(t, store)
	p := want[Poll](in, 200, "GET", "/v1/groups/billing/watch?wait=20s", nil)
	if len(p.Events) != 1 || p.Events[0].State != "vacant" {
		t.Fatalf("the snapshot: %+v", p)
	}
	l := lead(other, "billing", "a")
	p = want[Poll](in, 200, "GET", "/v1/groups/billing/watch?wait=20s&after="+p.Cursor, nil)
	if len(p.Events) != 1 || p.Events[0].State != "led" || p.Events[0].Holder != "a" {
		t.Fatalf("the change: %+v", p)
	}
	if none := want[Poll](other, 200, "GET", "/v1/groups/billing/watch?wait=50ms&after="+p.Cursor, nil); len(none.Events) != 0 || none.Cursor != p.Cursor {
		t.Errorf("nothing: %+v", none)
	}
	var all sync.WaitGroup
	all.Go(func() {
		r, err := in.try("GET", "/v1/groups/billing/watch?wait=20s&after="+p.Cursor, nil)
		if got := decode[Poll](t, r); err != nil || len(got.Events) != 1 || got.Events[0].State != "vacant" {
			t.Errorf("%v, %v", r, err)
		}
	})
	resign(other, l)
	all.Wait()
}

// unwatchableStore can lose its watch.
type unwatchableStore struct {
	store.Store
	mu    sync.Mutex
	cut   chan struct{}
	blind bool
}

func (s *unwatchableStore) set(blind bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blind = blind; blind {
		close(s.cut)
	} else {
		s.cut = make(chan struct{})
	}
}

func (s *unwatchableStore) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	s.mu.Lock()
	cut, blind := s.cut, s.blind
	s.mu.Unlock()
	return func(yield func(store.Update, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-cut:
				cancel()
			case <-ctx.Done():
			}
		}()
		if blind {
			yield(store.Update{}, errors.New("blind"))
			return
		}
		s.Store.Watch(ctx, scope)(yield)
	}
}

// While the engine does not answer, observers get the state unknown once. Afterwards they get
// what changed meanwhile, or that nothing has.
func TestWatchUnknown(t *testing.T) {
	store := &unwatchableStore{Store: memStore(t), cut: make(chan struct{})}
	in := serve(t, store)
	l, calm := lead(in, "busy", "a"), lead(in, "calm", "a")
	w, c := in.listen("/v1/groups/busy/watch", ""), in.listen("/v1/groups/calm/watch", "")
	w.expect("busy", "led", 1)
	c.expect("calm", "led", 1)
	store.set(true)
	w.expect("busy", "unknown", 1)
	c.expect("calm", "unknown", 1)
	resign(in, l)
	lead(in, "busy", "b")
	store.set(false)
	w.expect("busy", "vacant", 1)
	w.expect("busy", "led", 2)
	if e := c.expect("calm", "led", uint64(calm.Term)); !e.Snapshot {
		t.Errorf("%+v", e)
	}
}

// If a stream sent a term that the instance's watch never saw, and the engine is then
// restored to a time before that term, the stream gets a reset.
func TestRewoundUnseen(t *testing.T) {
	inner := memStore(t)
	store := &unwatchableStore{Store: inner, cut: make(chan struct{})}
	store.set(true)
	in := serve(t, store)
	restore := backup(inner)
	lead(in, "billing", "a")
	w := in.listen("/v1/groups/billing/watch", "")
	w.expect("billing", "led", 1)
	restore()
	store.set(false)
	if e := w.next(); e.kind != "reset" {
		t.Errorf("%+v, want a reset", e)
	}
	w.expect("billing", "vacant", 0)
}

// All streams of an instance share one watch of the engine, and concurrent reads of a group
// share a read that began after each of them was requested.
func TestSharing(t *testing.T) {
	store := &countingStore{Store: memStore(t)}
	in := serve(t, store)
	lead(in, "billing", "a")
	for range 20 {
		in.listen("/v1/groups/billing/watch", "").expect("billing", "led", 1)
	}
	if n := store.watches.Load(); n != 1 {
		t.Errorf("%d watches of the engine", n)
	}
	store.slow.Store(int64(100 * time.Millisecond))
	before := store.reads.Load()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if r, err := in.try("GET", "/v1/groups/billing/leader", nil); err != nil || r.status != 200 {
				t.Errorf("%v, %v", r, err)
			}
		})
	}
	all.Wait()
	if n := store.reads.Load() - before; n > 10 {
		t.Errorf("50 concurrent reads cost %d of the engine", n)
	}
}

// A shared read never returns state from before it was requested.
func TestReadIsFresh(t *testing.T) {
	store := &countingStore{Store: memStore(t)}
	in := serve(t, store)
	store.slow.Store(int64(5 * time.Millisecond))
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = in.try("GET", "/v1/groups/billing/leader", nil)
				}
			}
		})
	}
	for token := uint64(1); token <= 8; token++ {
		l := lead(in, "billing", "a")
		if got := want[Leader](in, 200, "GET", "/v1/groups/billing/leader", nil); uint64(got.Term) != token {
			t.Errorf("term %d, read %d", token, got.Term)
		}
		resign(in, l)
		refused(in, 404, "no_leader", "GET", "/v1/groups/billing/leader", nil)
	}
	close(stop)
	all.Wait()
}

// Watchers that never read do not delay others, and are disconnected.
func TestWatchersThatNeverRead(t *testing.T) {
	st := memStore(t)
	in := serve(t, st, func(c *Config) { c.WriteTimeout = 300 * time.Millisecond })
	for range 10 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(in.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		if _, err := conn.Write([]byte("GET /v1/groups/billing/watch HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	w := in.listen("/v1/groups/billing/watch", "")
	w.expect("billing", "vacant", 0)
	eventually(t, "all are there", func() bool { return in.gauge("tenure_streams") == "11" })
	big := candidate("a")
	big.Metadata = map[string]string{"pad": strings.Repeat("x", store.MaxMetadata-3)}
	session, err := st.Open(t.Context(), big, time.Minute, store.OpenOptions{Scope: store.Scope{"billing"}})
	if err != nil {
		t.Fatal(err)
	}
	cut := false
	for token := uint64(1); token <= 5000 && !cut; token++ {
		begin := time.Now()
		turn(t, st, session.ID, "billing")
		w.expect("billing", "led", token)
		w.expect("billing", "vacant", token)
		if took := time.Since(begin); took > patience/2 {
			t.Fatalf("a reader waited %v", took)
		}
		if token%100 == 0 {
			cut = in.gauge("tenure_streams") == "1"
		}
	}
	if !cut {
		t.Error("those that never read are still there")
	}
}

// An instance that stops ends its streams and waits at once, so that their callers reconnect
// elsewhere.
func TestStop(t *testing.T) {
	store := memStore(t)
	in := serve(t, store)
	lead(in, "billing", "a")
	w := in.listen("/v1/groups/billing/watch", "")
	w.expect("billing", "led", 1)
	answer := make(chan reply, 1)
	go func() {
		r, _ := in.try("POST", "/v1/groups/billing/campaign?wait=60s", CampaignRequest{NodeID: "b"})
		answer <- r
	}()
	eventually(t, "b waits", func() bool { return nodesOf(in, "billing") == "a b" })
	begin := time.Now()
	in.stop()
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("stopping took %v", took)
	}
	if r := <-answer; r.status != 503 || r.code() != "stopping" {
		t.Errorf("who waited: %v", r)
	}
	for range w.events {
	}
}
