package storeapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/storeapi"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
	"github.com/tenurehq/tenure/store/remote"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// gate uses the bearer credential as the caller's name, and records its calls.
type gate struct {
	mu    sync.Mutex
	asked []string
	heard []storeapi.Heard
	admin string // who may do everything
	deny  bool
}

func who(r *http.Request) string { return r.Header.Get("Authorization")[len("Bearer "):] }

func (g *gate) config(s store.Store) storeapi.Config {
	return storeapi.Config{
		Store: s,
		Own: func(r *http.Request, candidate string) error {
			if who(r) != candidate {
				return fmt.Errorf("%s is not %s", who(r), candidate)
			}
			return nil
		},
		May: func(r *http.Request, right auth.Verb, scope store.Scope) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.asked = append(g.asked, fmt.Sprint(right, scope))
			if g.deny || right == auth.Admin && who(r) != g.admin {
				return errors.New("not allowed")
			}
			return nil
		},
		Heard: func(_ *http.Request, h storeapi.Heard) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.heard = append(g.heard, h)
		},
	}
}

func (g *gate) take() (asked []string, heard []storeapi.Heard) {
	g.mu.Lock()
	defer g.mu.Unlock()
	asked, heard = g.asked, g.heard
	g.asked, g.heard = nil, nil
	return asked, heard
}

func as(t *testing.T, name, url string) *remote.Store {
	t.Helper()
	return connect(t, remote.Config{URLs: []string{url}, Bearer: func(context.Context) (string, error) { return name, nil }})
}

// No caller can keep alive, close, acquire, release or answer with the session of another, at
// any instance. The attempt is reported to Heard and has no effect. An admin may close the
// session.
func TestSessionsAreTheirOwners(t *testing.T) {
	engine := mem.New(mem.Options{})
	t.Cleanup(engine.Close)
	g := &gate{admin: "root"}
	first, second := instance(t, g.config(engine)), instance(t, g.config(engine))
	a := as(t, "a", first)
	ctx := t.Context()
	if _, err := a.Open(ctx, tenure.Candidate{ID: "b"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}}); !errors.Is(err, remote.ErrDenied) {
		t.Errorf("a opened a session for b: %v", err)
	}
	session, err := a.Open(ctx, tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	held, err := a.Acquire(ctx, session.ID, store.Record{Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Ask(ctx, session.ID, store.Request{ID: "r", Verb: store.StepDown, Group: "g", TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if err := a.Ask(ctx, session.ID, store.Request{ID: "r", Verb: store.StepDown, Group: "h", TTL: time.Minute}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("asked for a group that the session does not stand for: %v", err)
	}
	for _, url := range []string{first, second} {
		b := as(t, "b", url)
		g.take()
		for m, err := range map[wire.Method]error{
			wire.KeepAlive: second2(b.KeepAlive(ctx, session.ID)),
			wire.Close:     b.End(ctx, session.ID, ""),
			wire.Acquire:   second2(b.Acquire(ctx, session.ID, store.Record{Group: "h"})),
			wire.Release:   second2(b.Release(ctx, session.ID, "", "", held[0])),
			wire.Answer:    b.Answer(ctx, session.ID, "r", store.Answer{Outcome: store.Done}),
		} {
			if !errors.Is(err, remote.ErrDenied) || !errors.Is(err, store.ErrDenied) {
				t.Errorf("%s by another: %v", m, err)
			}
		}
		_, heard := g.take()
		if len(heard) != 5 || slices.ContainsFunc(heard, func(h storeapi.Heard) bool { return h.Err == nil || h.Candidate != "a" }) {
			t.Errorf("heard was %+v", heard)
		}
	}
	if v, err := engine.Read(ctx, "g"); err != nil || v.Version != held[0].Version || v.State != tenure.Led {
		t.Errorf("the record is %+v, %v", v, err)
	}
	if v, err := engine.Read(ctx, "h"); err != nil || v.Version != 0 {
		t.Errorf("another record is %+v, %v", v, err)
	}
	// The other instance knows the owner, who can continue there.
	if beat, err := as(t, "a", second).KeepAlive(ctx, session.ID); err != nil || len(beat.Requests) != 1 {
		t.Errorf("the owner at the other instance: %+v, %v", beat, err)
	}
	if err := as(t, "root", second).End(ctx, session.ID, store.Forced); err != nil {
		t.Errorf("an admin: %v", err)
	}
	if _, err := a.KeepAlive(ctx, session.ID); !errors.Is(err, store.ErrSessionDead) {
		t.Errorf("after that: %v", err)
	}
}

func second2(_ any, err error) error { return err }

// Every route requires the right to exactly the groups of the call, and refuses callers that
// May denies.
func TestRights(t *testing.T) {
	engine := mem.New(mem.Options{})
	t.Cleanup(engine.Close)
	g := &gate{admin: "a"}
	s := as(t, "a", instance(t, g.config(engine)))
	ctx := t.Context()
	session, err := s.Open(ctx, tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g", "x*"}})
	if err != nil {
		t.Fatal(err)
	}
	var held store.Record
	ask := store.Request{ID: "r", Verb: store.StepDown, Group: "g", TTL: time.Minute}
	calls := []struct {
		m    wire.Method
		want string
		call func() error
	}{
		{wire.Open, "campaign[g x*]", func() error {
			return second2(s.Open(ctx, tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g", "x*"}}))
		}},
		{wire.Acquire, "campaign[g x1]", func() error {
			got, err := s.Acquire(ctx, session.ID, store.Record{Group: "g"}, store.Record{Group: "x1"})
			if err == nil {
				held = got[0]
			}
			return err
		}},
		{wire.Release, "campaign[g]", func() error {
			return second2(s.Release(ctx, session.ID, "", "", store.Record{Group: "g", Version: held.Version}))
		}},
		{wire.FindSession, "observe[g x*]", func() error { return second2(s.Session(ctx, session.ID)) }},
		{wire.Ask, "step-down[g]", func() error { return s.Ask(ctx, session.ID, ask) }},
		{wire.Answered, "step-down[]", func() error { return second2(s.Answered(ctx, session.ID, "r")) }},
		{wire.Read, "observe[g]", func() error { return second2(s.Read(ctx, "g")) }},
		{wire.Groups, "observe[x*]", func() error { return second2(s.Groups(ctx, store.Scope{"x*"}, store.Page{})) }},
		{wire.Sessions, "observe[x*]", func() error { return second2(s.Sessions(ctx, store.Scope{"x*"}, store.Page{})) }},
		{wire.History, "observe[g]", func() error { return second2(s.History(ctx, "g", store.Page{})) }},
		{wire.Meta, "observe[]", func() error { return second2(s.Meta(ctx)) }},
		{wire.Attributes, "observe[g]", func() error { return second2(s.Attributes(ctx, "group/g")) }},
		{wire.Attributes, "observe[g]", func() error { return second2(s.Attributes(ctx, "once/g/job")) }},
		{wire.Attributes, "observe[]", func() error { return second2(s.Attributes(ctx, "node/a")) }},
		{wire.Attributes, "observe[]", func() error { return second2(s.Attributes(ctx, "else")) }},
		{wire.Attributes, "observe[*]", func() error { return second2(s.Attributes(ctx, "node/b")) }},
		{wire.Attributes, "observe[*]", func() error { return second2(s.Attributes(ctx, "node/a/b")) }},
		{wire.Attributes, "observe[*]", func() error { return second2(s.Attributes(ctx, "service/groups-0")) }},
		{wire.ListAttributes, "observe[x*]", func() error { return second2(s.ListAttributes(ctx, "group/x", store.Page{})) }},
		{wire.ListAttributes, "observe[*]", func() error { return second2(s.ListAttributes(ctx, "group", store.Page{})) }},
		{wire.ListAttributes, "observe[*]", func() error { return second2(s.ListAttributes(ctx, "node/a", store.Page{})) }},
		{wire.ListAttributes, "observe[g]", func() error { return second2(s.ListAttributes(ctx, "once/g/", store.Page{})) }},
		{wire.ListAttributes, "observe[*]", func() error { return second2(s.ListAttributes(ctx, "once/g", store.Page{})) }},
		{wire.SetAttributes, "admin[g]", func() error { return second2(s.SetAttributes(ctx, store.Attributes{Name: "group/g"})) }},
		{wire.SetAttributes, "campaign[g]", func() error { return second2(s.SetAttributes(ctx, store.Attributes{Name: "once/g/job"})) }},
		{wire.SetAttributes, "admin[*]", func() error { return second2(s.SetAttributes(ctx, store.Attributes{Name: "once/g"})) }},
		{wire.SetAttributes, "admin[*]", func() error { return second2(s.SetAttributes(ctx, store.Attributes{Name: "node/a"})) }},
		{wire.RaiseEpoch, "admin[*]", func() error { return second2(s.RaiseEpoch(ctx, 1)) }},
		{wire.Suspect, "campaign[g]", func() error { return s.Suspect(ctx, "g", 1) }}, // of an earlier epoch: without effect
		{wire.Watch, "observe[x*]", func() error {
			for _, err := range s.Watch(ctx, store.Scope{"x*"}) {
				return err
			}
			return nil
		}},
	}
	covered := []wire.Method{wire.Caps, wire.KeepAlive, wire.Close, wire.Answer} // TestSessionsAreTheirOwners checks the first ones; caps is checked below
	for _, c := range calls {
		covered = append(covered, c.m)
		g.take()
		if err := c.call(); err != nil {
			t.Errorf("%s: %v", c.m, err)
		}
		if asked, _ := g.take(); len(asked) != 1 || asked[0] != c.want {
			t.Errorf("%s asked for %v, want %s", c.m, asked, c.want)
		}
	}
	g.deny = true
	for _, c := range calls {
		if err := c.call(); !errors.Is(err, remote.ErrDenied) {
			t.Errorf("%s, denied: %v", c.m, err)
		}
	}
	api, err := storeapi.New(g.config(engine))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range api.Routes() {
		if r.Verb == "" || !slices.Contains(covered, r.Method) {
			t.Errorf("%s has no right, or is not tested", r.Method)
		}
	}
	if _, err := storeapi.New(storeapi.Config{Store: engine}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("without hooks: %v", err)
	}
}

// recordingStore records the records that it gets.
type recordingStore struct {
	store.Store
	given []store.Record
}

func (s *recordingStore) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	s.given = append(s.given, seen...)
	return s.Store.Acquire(ctx, id, seen...)
}

func (s *recordingStore) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	s.given = append(s.given, held...)
	return s.Store.Release(ctx, id, to, why, held...)
}

// Forged fields of a record do not reach the engine: only its group and version do.
func TestForgedRecords(t *testing.T) {
	engine := mem.New(mem.Options{})
	t.Cleanup(engine.Close)
	spy := &recordingStore{Store: engine}
	s := connect(t, remote.Config{URLs: []string{instance(t, trusting(spy))}})
	ctx := t.Context()
	session, err := s.Open(ctx, tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	forge := func(version uint64) store.Record {
		return store.Record{
			Group: "g", Version: version, Token: 1000, Holder: session.ID,
			Candidate: tenure.Candidate{ID: "mallory"}, Terms: []store.Term{{Token: 1, Candidate: "mallory"}},
		}
	}
	granted, err := s.Acquire(ctx, session.ID, forge(0))
	if err != nil || granted[0].Token != 1 || granted[0].Candidate.ID != "a" {
		t.Fatalf("%+v, %v", granted, err)
	}
	if _, err := s.Release(ctx, session.ID, "", "", forge(granted[0].Version)); err != nil {
		t.Error(err)
	}
	want := []store.Record{{Group: "g"}, {Group: "g", Version: granted[0].Version}}
	if !reflect.DeepEqual(spy.given, want) {
		t.Errorf("the engine was given %+v", spy.given)
	}
}
