package kv_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

// oneKey is an engine whose steps have one key each.
var oneKey = mem.Options{Observed: true, Keys: 1}

// A group that changes hands with every read is still read: each time it is held by one of
// two sessions that live.
func TestReadWhileHandedToAndFro(t *testing.T) {
	d := newBent(t, oneKey)
	s, other := client(t, d), client(t, d.Driver)
	a, b := session(t, other, "a"), session(t, other, "b")
	held := take(t, other, a)
	d.set(func() {
		d.commits = func(txn kv.Txn, _ kv.Result) {
			if len(txn.Read) != 1 || !strings.HasPrefix(txn.Read[0], "session/") {
				return
			}
			// The record is read next.
			to := a
			if held.Holder == a {
				to = b
			}
			given, err := other.Release(t.Context(), held.Holder, to, "", held)
			if err != nil {
				t.Error(err)
				return
			}
			held = given[0]
		}
	})
	v, err := s.Read(t.Context(), "g")
	if err != nil || v.Holder != a && v.Holder != b {
		t.Errorf("%+v, %v", v, err)
	}
}

// Whoever finds a session dead finds why.
func TestReasonComesWithTheDeath(t *testing.T) {
	d := newBent(t, oneKey)
	closer, other := client(t, d), client(t, d.Driver)
	id := session(t, closer, "a")
	told := make(chan store.Reason, 1)
	synced := make(chan struct{})
	go func() {
		for u, err := range other.Watch(t.Context(), store.Scope{"*"}) {
			switch {
			case err != nil:
				return
			case u.Kind == store.Synced:
				close(synced)
			case u.Kind == store.SessionEnded:
				told <- u.Reason
				return
			}
		}
	}()
	<-synced
	var why store.Reason
	d.set(func() {
		d.commits = func(txn kv.Txn, _ kv.Result) {
			if len(txn.Then) == 1 && txn.Then[0].Key == "beat/"+string(id) {
				select {
				case why = <-told:
				case <-time.After(30 * time.Second):
				}
			}
		}
	})
	must(t, closer.End(t.Context(), id, store.SteppedDown))
	if why != store.SteppedDown {
		t.Errorf("the watch says that it ended because it was %q", why)
	}
}

// The epoch is raised, or a rule is set, after one of the writes of a grant, and then somebody
// reads the group. Whoever is shown as its leader still leads it after the call.
func TestGrantIsNotTakenBack(t *testing.T) {
	for name, call := range map[string]func(s store.Store, a, b store.SessionID, r store.Record) error{
		"acquire": func(s store.Store, _, b store.SessionID, r store.Record) error {
			_, err := s.Acquire(t.Context(), b, r)
			return err
		},
		"handover": func(s store.Store, a, b store.SessionID, r store.Record) error {
			_, err := s.Release(t.Context(), a, b, "", r)
			return err
		},
	} {
		for change, do := range map[string]func(*kv.Store) error{
			"epoch": func(s *kv.Store) error {
				_, err := s.RaiseEpoch(t.Context(), 1)
				return err
			},
			"rule": func(s *kv.Store) error {
				_, err := s.SetAttributes(t.Context(), store.Attributes{Name: "node/b", Values: map[string]string{"cordon": "repair"}})
				return err
			},
		} {
			for at := 1; at <= 2; at++ {
				t.Run(fmt.Sprintf("%s, %s after write %d", name, change, at), func(t *testing.T) {
					d := newBent(t, oneKey)
					s, other := client(t, d), client(t, d.Driver)
					a, b := session(t, other, "a"), session(t, other, "b")
					r := take(t, other, a)
					if name == "acquire" {
						released, err := other.Release(t.Context(), a, "", "", r)
						must(t, err)
						r = released[0]
					}
					var shown store.View
					writes := 0
					d.set(func() {
						d.commits = func(txn kv.Txn, r kv.Result) {
							if len(txn.Then) == 0 || txn.Then[0].Key != "record/g" || !r.OK {
								return
							}
							if writes++; writes != at {
								return
							}
							if err := do(other); err != nil {
								t.Error(err)
							}
							var err error
							if shown, err = other.Read(t.Context(), "g"); err != nil {
								t.Error(err)
							}
						}
					})
					version, _, err := s.Rules(t.Context())
					must(t, err)
					err = call(s.Under(version), a, b, r)
					now, failed := other.Read(t.Context(), "g")
					must(t, failed)
					if shown.Version == 0 {
						t.Fatalf("the record was written %d times", writes)
					}
					if shown.Holder == b && (now.Holder != b || now.Token != shown.Token) {
						t.Errorf("shown as the leader: %+v; after the call (%v): %+v", shown.Record, err, now.Record)
					}
					if granted := now.Holder == b && now.State == tenure.Led; granted != (err == nil) {
						t.Errorf("the call answers %v, and the record is %+v", err, now.Record)
					}
				})
			}
		}
	}
}

// The epoch is raised, or a rule is set, after it was compared and before the grant is written.
// Nothing is granted in the former epoch or against the rule.
func TestGrantIsCheckedAgain(t *testing.T) {
	for key, do := range map[string]func(*kv.Store) error{
		"meta": func(s *kv.Store) error {
			_, err := s.RaiseEpoch(t.Context(), 1)
			return err
		},
		"rules": func(s *kv.Store) error {
			_, err := s.SetAttributes(t.Context(), store.Attributes{Name: "node/a", Values: map[string]string{"cordon": "repair"}})
			return err
		},
	} {
		t.Run(key, func(t *testing.T) {
			d := newBent(t, oneKey)
			s, other := client(t, d), client(t, d.Driver)
			a := session(t, s, "a")
			version, _, err := s.Rules(t.Context())
			must(t, err)
			changed := false
			d.set(func() {
				d.commits = func(txn kv.Txn, _ kv.Result) {
					if len(txn.Read) == 1 && txn.Read[0] == key && !changed {
						changed = true
						if err := do(other); err != nil {
							t.Error(err)
						}
					}
				}
			})
			_, err = s.Under(version).Acquire(t.Context(), a, store.Record{Group: "g"})
			v, failed := other.Read(t.Context(), "g")
			must(t, failed)
			switch key {
			case "meta":
				if err != nil || v.Token.Epoch() != 1 {
					t.Errorf("%v, and the record is %+v", err, v)
				}
			case "rules":
				if !errors.Is(err, store.ErrRules) || v.State != tenure.Vacant || v.Version != 0 {
					t.Errorf("%v, and the record is %+v", err, v)
				}
			}
			if !changed {
				t.Errorf("the key was not compared")
			}
			if groups, err := other.Groups(t.Context(), store.Scope{"*"}, store.Page{}); err != nil || len(groups) != int(min(1, v.Version)) {
				t.Errorf("groups %+v, %v", groups, err)
			}
		})
	}
}

// broken fails every call once it is.
type broken struct {
	*bent
	is bool
}

func (d *broken) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	if d.is {
		return kv.Result{}, errors.New("the process has crashed")
	}
	return d.bent.Commit(ctx, t)
}

// A process crashes while a grant of its own is prepared. Nobody is shown as the leader before
// somebody has decided about the grant; then it is the session that it is for, unless that has
// ended.
func TestCrashBetweenPreparingAndGranting(t *testing.T) {
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprint("ended ", ended), func(t *testing.T) {
			d := &broken{bent: newBent(t, oneKey)}
			s, other := client(t, d), client(t, d.Driver)
			a, b := session(t, s, "a"), session(t, other, "b")
			r := take(t, other, b)
			released, err := other.Release(t.Context(), b, "", "", r)
			must(t, err)
			d.set(func() {
				d.commits = func(txn kv.Txn, _ kv.Result) {
					d.is = d.is || len(txn.Then) == 1 && txn.Then[0].Key == "record/g"
				}
			})
			if _, err := s.Acquire(t.Context(), a, released[0]); err == nil || store.Definite(err) {
				t.Fatalf("the outcome is unknown, but: %v", err)
			}
			for u, err := range other.Watch(t.Context(), store.Scope{"g"}) {
				must(t, err)
				if u.Kind == store.GroupChanged && (u.View.State != tenure.Vacant || u.View.Version != released[0].Version) {
					t.Errorf("the watch shows %+v", u.View)
				}
				if u.Kind == store.Synced {
					break
				}
			}
			if ended {
				must(t, other.End(t.Context(), a, store.Closed))
			}
			_, err = other.Acquire(t.Context(), b, released[0])
			v, failed := other.Read(t.Context(), "g")
			must(t, failed)
			var c *store.ConflictError
			switch {
			case !errors.As(err, &c) || len(c.Current) != 1 || c.Current[0].Version != v.Version:
				t.Errorf("%v, and the group is %+v", err, v)
			case !ended && (v.State != tenure.Led || v.Holder != a || v.Token != r.Token+1):
				t.Errorf("the grant was prepared for %s, and the group is %+v", a, v)
			case ended:
				won, err := other.Acquire(t.Context(), b, v.Record)
				if err != nil || won[0].Token <= r.Token || v.State != tenure.Vacant {
					t.Errorf("%+v, %v after %+v", won, err, v)
				}
			}
		})
	}
}

// A late copy of the step that began a session does not bring it back.
func TestLateOpening(t *testing.T) {
	d := newBent(t, oneKey)
	s := client(t, d)
	var begins kv.Txn
	d.set(func() {
		d.commits = func(txn kv.Txn, _ kv.Result) {
			if len(txn.If) == 1 && strings.HasPrefix(txn.If[0].Key, "beat/") && txn.If[0].Version == 0 {
				begins = txn
			}
		}
	})
	id := session(t, s, "a")
	must(t, s.End(t.Context(), id, store.Closed))
	r, err := d.Driver.Commit(t.Context(), begins)
	must(t, err)
	if _, err := s.Session(t.Context(), id); r.OK || !errors.Is(err, store.ErrSessionDead) {
		t.Errorf("a late copy of %+v has the effect %+v, and the session is %v", begins, r, err)
	}
}

// Two calls open the session of one attempt, and the second one comes before the session of
// the first one has begun. One session begins, and both have it.
func TestOpenTwiceBetweenSteps(t *testing.T) {
	d := &meddler{Driver: newBent(t, oneKey).Driver}
	s, other := client(t, d), client(t, d.Driver)
	open := func(s *kv.Store) store.Session {
		n, err := s.Open(t.Context(), tenure.Candidate{ID: "a"}, time.Hour, store.OpenOptions{
			Scope: store.Scope{"*"}, Instance: "an-instance-of-the-candidate", Attempt: "1",
		})
		must(t, err)
		return n
	}
	var second store.Session
	d.before, d.after = func() { second = open(other) }, func() {}
	first := open(s)
	all, err := other.Sessions(t.Context(), store.Scope{"*"}, store.Page{})
	if err != nil || len(all) != 1 || first.ID != second.ID {
		t.Errorf("the first call has session %s, the second %s, and %d live (%v)", first.ID, second.ID, len(all), err)
	}
}
