package service

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
)

// laggingStore is an engine whose watch can be blocked, so that an instance misses later
// changes.
type laggingStore struct {
	store.Ruled
	held chan struct{} // closed: the watch sends nothing more
	once sync.Once
}

func newLagging(s store.Ruled) *laggingStore {
	return &laggingStore{Ruled: s, held: make(chan struct{})}
}

func (s *laggingStore) hold() { s.once.Do(func() { close(s.held) }) }

func (s *laggingStore) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		for v, err := range s.Ruled.Watch(ctx, scope) {
			select {
			case <-s.held:
				<-ctx.Done()
				return
			default:
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

// release frees a group without the instance's knowledge.
func release(t *testing.T, s store.Store, id store.SessionID, group string) {
	t.Helper()
	v, err := s.Read(t.Context(), group)
	if err == nil {
		_, err = s.Release(t.Context(), id, "", store.Resigned, v.Record)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// seize makes a session the leader of a group without the instance's knowledge.
func seize(t *testing.T, s store.Store, id store.SessionID, group string) {
	t.Helper()
	v, err := s.Read(t.Context(), group)
	if err == nil {
		_, err = s.Acquire(t.Context(), id, v.Record)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func session(t *testing.T, s store.Store, node string) store.SessionID {
	t.Helper()
	l, err := s.Open(t.Context(), candidate(node), time.Minute, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	return l.ID
}

// outcome formats the answer to a batch on one line.
func outcome(b Batch) string {
	var out []string
	for _, l := range b.Led {
		out = append(out, l.Group+"="+l.Term.String())
	}
	for _, no := range b.Refused {
		out = append(out, strings.TrimSuffix(no.Group+"!"+no.Code+" "+no.LeaderNodeID, " "))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// campaigning opens a session of node a and returns a function that campaigns in it.
func campaigning(in *instance) (store.SessionID, func(groups ...string) string) {
	in.t.Helper()
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "a", Groups: []string{"*"}, TTLMS: 60_000})
	return sessionOf(in.t, in, s.Handle), func(groups ...string) string {
		in.t.Helper()
		return outcome(want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign", BatchRequest{Groups: groups}))
	}
}

// A batch does not report a term that has ended as led, even if the instance's watch is
// behind. It names the leader of a group that another node leads, acquires a vacant group,
// and does not acquire a group that the node may no longer lead.
func TestBatchIsNotBehind(t *testing.T) {
	store := newLagging(memStore(t))
	in := serve(t, store)
	id, campaign := campaigning(in)
	groups := []string{"anew", "cooled", "lost", "stays"}
	if got := campaign(groups...); got != "anew=1, cooled=1, lost=1, stays=1" {
		t.Fatal(got)
	}
	eventually(t, "the feed knows", func() bool { return len(in.svc.feed.Held(id)) == 4 })
	store.hold()
	for _, g := range groups[:3] {
		release(t, store, id, g)
	}
	seize(t, store, session(t, store, "b"), "lost")
	for _, g := range []string{"cooled", "stays"} {
		if _, err := in.svc.operations().Cool(t.Context(), g, "a", time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if got := campaign(groups...); got != "anew=2, cooled!cooling_down, lost!not_leader b, stays=1" {
		t.Error(got)
	}
	if len(in.svc.feed.Held(id)) != 4 {
		t.Error("the feed was not behind, so this showed nothing")
	}
}

// A cool-down applies as soon as it is written, whoever wrote it: neither a batch nor the
// store's routes use cached attributes.
func TestCoolDownAtOnce(t *testing.T) {
	st := memStore(t)
	in := serve(t, st)
	id, campaign := campaigning(in)
	s := client(in, nil)
	other := session(t, s, "a")
	for i, taken := range []func() bool{
		func() bool { return campaign("x0", "y0") != "x0!cooling_down, y0=2" },
		func() bool {
			var seen []store.Record
			for _, g := range []string{"x1", "y1"} {
				v, err := s.Read(bound(t), g)
				if err != nil {
					t.Fatal(err)
				}
				seen = append(seen, v.Record)
			}
			_, err := s.Acquire(bound(t), other, seen...)
			return !errors.Is(err, store.ErrConflict)
		},
	} {
		groups := []string{"x" + string(rune('0'+i)), "y" + string(rune('0'+i))}
		campaign(groups...)
		release(t, st, id, groups[0])
		release(t, st, id, groups[1])
		if _, err := in.svc.operations().Cool(t.Context(), groups[0], "a", time.Hour); err != nil {
			t.Fatal(err)
		}
		if taken() {
			t.Errorf("%d: the cool-down was gone round", i)
		}
	}
}

// unansweredStore is an engine whose grants for some groups get no answer and take effect later,
// if at all.
type unansweredStore struct {
	store.Store
	vague atomic.Int64 // how many more grants get no answer
	mu    sync.Mutex
	late  []func() error
}

var errUnanswered = errors.New("no answer")

// Caps makes callers acquire each group with a call of its own.
func (s *unansweredStore) Caps() store.Caps {
	l := s.Store.Caps()
	l.Batch = 1
	return l
}

func (s *unansweredStore) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	if !strings.HasPrefix(seen[0].Group, "vague") || s.vague.Add(-1) < 0 {
		return s.Store.Acquire(ctx, id, seen...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = append(s.late, func() error {
		_, err := s.Store.Acquire(context.WithoutCancel(ctx), id, seen...)
		return err
	})
	return nil, errUnanswered
}

// An attempt without an answer is repeated, so that it cannot take effect unnoticed later. If
// the retry has no answer either, the caller learns that the outcome for that group is
// unknown, and which others it leads.
func TestBatchOfUnknownOutcome(t *testing.T) {
	st := &unansweredStore{Store: memStore(t)}
	in := serve(t, st)
	_, campaign := campaigning(in)
	st.vague.Store(1)
	if got := campaign("vague-1"); got != "vague-1=1" {
		t.Error(got)
	}
	if err := st.late[0](); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the first try came later, and was answered with %v", err)
	}
	st.vague.Store(100)
	if got := campaign("clear", "vague-2"); got != "clear=1, vague-2!no_quorum" {
		t.Error(got)
	}
	if err := st.late[len(st.late)-1](); err != nil {
		t.Fatal(err)
	}
	if got := campaign("clear", "vague-2"); got != "clear=1, vague-2=1" {
		t.Errorf("what took effect later: %s", got)
	}
	s := want[Session](in, 201, "POST", "/v1/sessions", SessionRequest{NodeID: "b", Groups: []string{"*"}})
	for _, wait := range []string{"", "?wait=200ms"} {
		refused(in, 503, "no_quorum", "POST", "/v1/sessions/"+s.Handle+"/campaign"+wait, BatchRequest{Groups: []string{"vague-3"}})
	}
	refused(in, 503, "no_quorum", "POST", "/v1/groups/vague-3/campaign", CampaignRequest{NodeID: "b", Session: s.Handle})
	st.vague.Store(0)
	if got := outcome(want[Batch](in, 200, "POST", "/v1/sessions/"+s.Handle+"/campaign?wait=10s", BatchRequest{Groups: []string{"vague-3"}})); got != "vague-3=1" {
		t.Error(got)
	}
}
