package operator_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

func newStore(t *testing.T) operator.Store {
	t.Helper()
	return operator.Store{Store: mem.New(mem.Options{}), Call: 30 * time.Second}
}

// lead makes a node lead a group, with a session that nobody keeps alive.
func lead(t *testing.T, s operator.Store, node, group string) (store.Session, store.View) {
	t.Helper()
	session, err := s.Open(t.Context(), tenure.Candidate{ID: node}, time.Hour, store.OpenOptions{Scope: store.Scope{group}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.Read(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	granted, err := s.Acquire(t.Context(), session.ID, v.Record)
	if err != nil {
		t.Fatal(err)
	}
	return session, store.View{Record: granted[0], State: tenure.Led}
}

// The outcome of a request is the leader's answer, the end of its session, or its
// resignation. Without any, it is Waiting.
func TestAsk(t *testing.T) {
	order := operator.Order{Verb: store.StepDown, Wait: time.Minute}
	answer := func(a store.Answer) func(*testing.T, operator.Store, store.Session) {
		return func(t *testing.T, s operator.Store, l store.Session) {
			for {
				beat, err := s.KeepAlive(t.Context(), l.ID)
				if err != nil {
					t.Error(err)
					return
				}
				for _, r := range beat.Requests {
					if err := s.Answer(t.Context(), l.ID, r.ID, a); err != nil {
						t.Error(err)
					}
					return
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	for name, tt := range map[string]struct {
		leader func(*testing.T, operator.Store, store.Session)
		wait   time.Duration
		want   operator.Asked
	}{
		"done":    {answer(store.Answer{Outcome: store.Done}), time.Minute, operator.Asked{Outcome: store.Done, Detail: "the leader has resigned"}},
		"refused": {answer(store.Answer{Outcome: store.Refused, Detail: "busy"}), time.Minute, operator.Asked{Outcome: store.Refused, Detail: "busy"}},
		"closed": {func(t *testing.T, s operator.Store, l store.Session) {
			if err := s.End(t.Context(), l.ID, store.Closed); err != nil {
				t.Error(err)
			}
		}, time.Minute, operator.Asked{Outcome: store.Done}},
		"released": {func(t *testing.T, s operator.Store, l store.Session) {
			v, err := s.Read(t.Context(), "billing")
			if err == nil {
				_, err = s.Release(t.Context(), l.ID, "", store.Resigned, v.Record)
			}
			if err != nil {
				t.Error(err)
			}
		}, time.Minute, operator.Asked{Outcome: store.Done, Detail: "the leader has resigned"}},
		"silent": {func(*testing.T, operator.Store, store.Session) {}, 150 * time.Millisecond, operator.Asked{Outcome: operator.Waiting}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			session, v := lead(t, s, "a", "billing")
			done := make(chan struct{})
			go func() {
				defer close(done)
				tt.leader(t, s, session)
			}()
			o := order
			o.Wait = tt.wait
			got, err := s.Ask(t.Context(), v, o)
			<-done
			if err != nil || got.Outcome != tt.want.Outcome || tt.want.Detail != "" && got.Detail != tt.want.Detail {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// A step-down of a leader whose lease expired before it was asked says so.
func TestAskExpired(t *testing.T) {
	s := newStore(t)
	session, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, 20*time.Millisecond, store.OpenOptions{Scope: store.Scope{"billing"}})
	if err != nil {
		t.Fatal(err)
	}
	granted, err := s.Acquire(t.Context(), session.ID, store.Record{Group: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	for {
		if v, err := s.Read(t.Context(), "billing"); err != nil || v.State != tenure.Led {
			break
		}
		time.Sleep(time.Millisecond)
	}
	got, err := s.Ask(t.Context(), store.View{Record: granted[0], State: tenure.Led}, operator.Order{Verb: store.StepDown, Wait: time.Minute})
	if err != nil || got.Outcome != store.Done || !strings.Contains(got.Detail, "expired") {
		t.Errorf("%+v, %v", got, err)
	}
}

// A transfer is done when the successor has the group. If the term ended in another way it is
// not: the session may have expired before the transfer was committed.
func TestAskTransfer(t *testing.T) {
	for name, tt := range map[string]struct {
		next string // who gets the group after the leader's session has ended
		want store.Outcome
	}{
		"to the successor": {"b", store.Done},
		"to another":       {"c", operator.Ended},
		"to nobody":        {"", operator.Ended},
	} {
		for _, asked := range []bool{true, false} { // before the session ended, and after
			s := newStore(t)
			session, v := lead(t, s, "a", "billing")
			end := func() {
				if err := s.End(t.Context(), session.ID, store.Expired); err != nil {
					t.Error(err)
				}
				if tt.next != "" {
					lead(t, s, tt.next, "billing")
				}
			}
			done := make(chan struct{})
			if !asked {
				end()
				close(done)
			} else {
				go func() {
					defer close(done)
					for {
						if beat, err := s.KeepAlive(t.Context(), session.ID); err != nil || len(beat.Requests) > 0 {
							break
						}
						time.Sleep(time.Millisecond)
					}
					end()
				}()
			}
			got, err := s.Ask(t.Context(), v, operator.Order{Verb: store.Transfer, To: "b", Wait: time.Minute})
			<-done
			if err != nil || got.Outcome != tt.want && !(asked && tt.next != "" && got.Outcome == operator.Ended) {
				t.Errorf("%s, asked before %v: %+v, %v", name, asked, got, err)
			}
		}
	}
}

// A node is barred by a policy without it, by a cool-down until it is over, by a cordon until
// it is removed, and by nothing else.
func TestBar(t *testing.T) {
	s := newStore(t)
	ctx := t.Context()
	bar := func(code string) {
		t.Helper()
		err := s.Bar(ctx, "billing", "a")
		var is *store.BarError
		if code == "" && err != nil || code != "" && (!errors.As(err, &is) || is.Code != code) {
			t.Errorf("%v, not %q", err, code)
		}
	}
	bar("")
	if _, err := s.Cordon(ctx, "a", "disk"); err != nil {
		t.Fatal(err)
	}
	bar("cordoned")
	if err := s.Bar(ctx, "billing", "b"); err != nil {
		t.Error(err)
	}
	if _, err := s.Cordon(ctx, "a", ""); err != nil {
		t.Fatal(err)
	}
	bar("")
	until, err := s.Cool(ctx, "billing", "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	bar("cooling_down")
	if err := s.Warm(ctx, "billing", "a", "another"); err != nil {
		t.Fatal(err)
	}
	bar("cooling_down")
	if err := s.Warm(ctx, "billing", "a", until); err != nil {
		t.Fatal(err)
	}
	bar("")
	if _, err := s.Cool(ctx, "billing", "a", -time.Hour); err != nil {
		t.Fatal(err)
	}
	bar("")
	set := func(g operator.GroupPolicy) {
		t.Helper()
		_, err := s.Change(ctx, operator.Group("billing"), 0, func(values map[string]string) error {
			next := g.Values(values)
			clear(values)
			maps.Copy(values, next)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	set(operator.GroupPolicy{Members: []string{"b"}})
	bar("not_a_member")
	set(operator.GroupPolicy{Members: []string{"a", "b"}})
	bar("")
}

// A policy is read back as it was written. Cool-downs survive a new policy. A write with an
// outdated version is refused.
func TestPolicy(t *testing.T) {
	s := newStore(t)
	ctx := t.Context()
	if _, err := s.Cool(ctx, "billing", "a", time.Hour); err != nil {
		t.Fatal(err)
	}
	off := false
	want := operator.GroupPolicy{MinTTLMS: 2000, MaxTTLMS: 9000, BackoffMS: 5, Members: []string{"a", "b"}, Fenced: &off}
	write := func(values map[string]string) error {
		next := want.Values(values)
		clear(values)
		maps.Copy(values, next)
		return nil
	}
	a, err := s.Change(ctx, operator.Group("billing"), 0, write)
	if err != nil {
		t.Fatal(err)
	}
	p := operator.ParsePolicy(a)
	if got := p.Wire(); got.MinTTLMS != 2000 || got.MaxTTLMS != 9000 || got.BackoffMS != 5 || strings.Join(got.Members, ",") != "a,b" || *got.Fenced || !p.Declared || p.Deleted {
		t.Errorf("%+v", got)
	}
	if p.Cooling("a").IsZero() || !p.Cooling("b").IsZero() {
		t.Error("the cool-down is gone")
	}
	var changed *operator.VersionError
	if _, err := s.Change(ctx, operator.Group("billing"), a.Version+1, write); !errors.As(err, &changed) || changed.Have != a.Version {
		t.Errorf("%v", err)
	}
	for says, g := range map[string]operator.GroupPolicy{
		"min_ttl_ms = 9 must not be above max_ttl_ms = 8": {MinTTLMS: 9, MaxTTLMS: 8},
		"the longest TTL of this deployment":              {MaxTTLMS: 1 << 40},
		"backoff_ms":                                      {BackoffMS: -1},
		"the shortest TTL of this engine is 2000":         {MaxTTLMS: 1999},
		"is listed twice":                                 {Members: []string{"a", "a"}},
	} {
		if err := g.Check(store.Caps{MinTTL: 2 * time.Second}, time.Hour); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, not %q", err, says)
		}
	}
}

// Listings continue over pages and end where they should.
func TestListings(t *testing.T) {
	s := newStore(t)
	session, _ := lead(t, s, "a", "billing")
	lead(t, s, "b", "shard-1")
	held, err := s.Held(t.Context(), store.Scope{"*"}, session.ID)
	if err != nil || len(held) != 1 || held[0] != "billing" {
		t.Errorf("%v %v", held, err)
	}
	newest, err := s.Newest(t.Context(), "billing", "a")
	if err != nil || newest.ID != session.ID {
		t.Errorf("%v %v", newest, err)
	}
	if none, err := s.Newest(t.Context(), "billing", "b"); err != nil || none.ID != "" {
		t.Errorf("%v %v", none, err)
	}
	n := 0
	for range s.Terms(t.Context(), "billing") {
		n++
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range s.Views(ended, store.Scope{"*"}, "") {
		if err == nil {
			t.Error("a call without time succeeds")
		}
	}
	if n != 1 {
		t.Errorf("%d terms", n)
	}
}

// On a guarded engine a cordoned node gets no group, with a definite error, until it is
// uncordoned.
func TestGuarded(t *testing.T) {
	s := newStore(t)
	b := guard.Guard(s.Store, guard.Config{})
	session, err := b.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Hour, store.OpenOptions{Scope: store.Scope{"billing"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Cordon(t.Context(), "a", "disk"); err != nil {
		t.Fatal(err)
	}
	_, err = b.Acquire(t.Context(), session.ID, store.Record{Group: "billing"})
	if !errors.Is(err, store.ErrBusy) || !store.Definite(err) || !strings.Contains(err.Error(), "disk") {
		t.Errorf("%v", err)
	}
	if _, err := s.Cordon(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	granted, err := b.Acquire(t.Context(), session.ID, store.Record{Group: "billing"})
	if err != nil || granted[0].Holder != session.ID {
		t.Errorf("%+v %v", granted, err)
	}
}

// The outcome of a transfer is what the record says, whatever the leader answered: it is done
// if the target leads next, and not if another node does.
func TestTransferOutcome(t *testing.T) {
	release := func(t *testing.T, s operator.Store, l store.Session, to store.SessionID) {
		v, err := s.Read(t.Context(), "billing")
		if err == nil {
			_, err = s.Release(t.Context(), l.ID, to, store.Transferred, v.Record)
		}
		if err != nil {
			t.Error(err)
		}
	}
	answer := func(t *testing.T, s operator.Store, l store.Session, o store.Outcome) {
		beat, err := s.KeepAlive(t.Context(), l.ID)
		if err != nil || len(beat.Requests) != 1 {
			t.Errorf("%+v, %v", beat, err)
			return
		}
		if err := s.Answer(t.Context(), l.ID, beat.Requests[0].ID, store.Answer{Outcome: o, Detail: "said so"}); err != nil {
			t.Error(err)
		}
	}
	elect := func(t *testing.T, s operator.Store, l store.Session) {
		v, err := s.Read(t.Context(), "billing")
		if err == nil {
			_, err = s.Acquire(t.Context(), l.ID, v.Record)
		}
		if err != nil {
			t.Error(err)
		}
	}
	type nodes struct{ a, b, c store.Session }
	for name, tt := range map[string]struct {
		leader func(*testing.T, operator.Store, nodes)
		want   store.Outcome
	}{
		"handed to it": {func(t *testing.T, s operator.Store, n nodes) {
			release(t, s, n.a, n.b.ID)
			answer(t, s, n.a, store.Done)
		}, store.Done},
		"handed to it, and on": {func(t *testing.T, s operator.Store, n nodes) { release(t, s, n.a, n.b.ID); release(t, s, n.b, n.c.ID) }, store.Done},
		"handed to another": {func(t *testing.T, s operator.Store, n nodes) {
			release(t, s, n.a, n.c.ID)
			answer(t, s, n.a, store.Done)
		}, operator.Ended},
		"another was faster": {func(t *testing.T, s operator.Store, n nodes) { release(t, s, n.a, ""); elect(t, s, n.c) }, operator.Ended},
		"refused, and another elected": {func(t *testing.T, s operator.Store, n nodes) {
			release(t, s, n.a, n.c.ID)
			answer(t, s, n.a, store.Refused)
		}, operator.Ended},
		"refused": {func(t *testing.T, s operator.Store, n nodes) { answer(t, s, n.a, store.Refused) }, store.Refused},
		"its session ended": {func(t *testing.T, s operator.Store, n nodes) {
			if err := s.End(t.Context(), n.a.ID, store.Closed); err != nil {
				t.Error(err)
			}
		}, operator.Ended},
		"nobody leads": {func(t *testing.T, s operator.Store, n nodes) { answer(t, s, n.a, store.Done); release(t, s, n.a, "") }, operator.Ended},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			var n nodes
			var v store.View
			n.a, v = lead(t, s, "a", "billing")
			for node, to := range map[string]*store.Session{"b": &n.b, "c": &n.c} {
				var err error
				if *to, err = s.Open(t.Context(), tenure.Candidate{ID: node}, time.Hour, store.OpenOptions{Scope: store.Scope{"billing"}}); err != nil {
					t.Fatal(err)
				}
			}
			o := operator.Order{Verb: store.Transfer, To: "b", Wait: time.Minute}
			if name == "nobody leads" {
				o.Wait = 500 * time.Millisecond
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					beat, err := s.KeepAlive(t.Context(), n.a.ID)
					if err != nil {
						t.Error(err)
						return
					}
					if len(beat.Requests) > 0 {
						break
					}
					time.Sleep(time.Millisecond)
				}
				tt.leader(t, s, n)
			}()
			got, err := s.Ask(t.Context(), v, o)
			<-done
			if err != nil || got.Outcome != tt.want {
				t.Errorf("%+v, %v, want %s", got, err, tt.want)
			}
		})
	}
}

// Node ids that several processes use for the same group are found, and no others: one
// process may have several sessions, and two may use one id for different groups.
func TestDuplicates(t *testing.T) {
	s := newStore(t)
	for _, o := range []struct {
		node, instance string
		scope          store.Scope
	}{
		{"twice", "instance-1-of-twice", store.Scope{"billing"}},
		{"twice", "instance-2-of-twice", store.Scope{"bill*"}},
		{"twice", "instance-2-of-twice", store.Scope{"other"}},
		{"unknown", "", store.Scope{"billing"}},
		{"unknown", "", store.Scope{"billing"}},
		{"known", "", store.Scope{"billing"}},
		{"known", "instance-1-of-known", store.Scope{"billing"}},
		{"many", "instance-1-of-many", store.Scope{"billing"}},
		{"many", "instance-1-of-many", store.Scope{"*"}},
		{"apart", "instance-1-of-apart", store.Scope{"billing"}},
		{"apart", "instance-2-of-apart", store.Scope{"other"}},
	} {
		if _, err := s.Open(t.Context(), tenure.Candidate{ID: o.node}, time.Hour, store.OpenOptions{Scope: o.scope, Instance: o.instance}); err != nil {
			t.Fatal(err)
		}
	}
	found, err := s.Duplicates(t.Context(), store.Scope{"*"})
	if err != nil || len(found) != 2 || found[0][0].Candidate.ID != "known" || found[1][0].Candidate.ID != "twice" || len(found[1]) != 2 {
		t.Errorf("%+v, %v", found, err)
	}
}
