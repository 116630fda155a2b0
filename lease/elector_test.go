package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
)

var errEnough = errors.New("enough")

// cut campaigns until after, and requires that a term or an error comes out of
// it, not both, and the error at the moment of the cut. It reports which.
func (w *world) cut(e *lease.Elector, after time.Duration) (won bool) {
	w.Helper()
	ctx, cancel := context.WithTimeoutCause(w.Context(), after, errEnough)
	defer cancel()
	begin := time.Now()
	term, err := e.Campaign(ctx)
	switch {
	case (term == nil) == (err == nil):
		w.Fatalf("cut after %v: %v and %v", after, term, err)
	case err != nil && !errors.Is(err, errEnough):
		w.Fatalf("cut after %v: %v", after, err)
	case err != nil && time.Since(begin) != after:
		w.Fatalf("cut after %v, returned after %v", after, time.Since(begin))
	case term != nil:
		w.resign(term)
	}
	return term != nil
}

// A campaign whose context ends, at whatever moment, leaves nothing behind that
// keeps another from leading: not before the session is open, nor while it is
// being opened, nor while the group is being acquired, also when the reply to
// that is lost.
func TestCutCampaignLeavesNoOrphan(t *testing.T) {
	const (
		roundTrip = 10 * time.Millisecond
		// Of the one that was cut: the acquire under way and the release of what it
		// won, both perhaps behind a lost reply. Of the next: to open, to read the
		// line, to acquire; and the step that it leaves to the one that was there
		// before.
		bound = 10 * roundTrip
	)
	for _, lossy := range []bool{false, true} {
		t.Run(fmt.Sprintf("lossy=%v", lossy), func(t *testing.T) {
			bubble(t, func(w *world) {
				won, lost := 0, 0
				for after := time.Duration(0); after < 6*roundTrip; after += roundTrip / 8 {
					flaky := newFlakyStore(newSlowStore(w.mem, roundTrip), uint64(after)) // some replies are lost in silence
					if lossy {
						flaky.lose(1, acquire)
					}
					a := w.node(flaky, "a")
					b := w.node(newSlowStore(w.mem, roundTrip), "b")
					if w.cut(w.elector(a, "g"), after) {
						won++
					} else {
						lost++
					}
					begin := time.Now()
					term := w.win(b, "g")
					if took := time.Since(begin); took > bound {
						w.Fatalf("cut after %v: the next leads only after %v", after, took)
					}
					time.Sleep(time.Minute)
					if err := term.Check(); err != nil {
						w.Fatalf("cut after %v: %v", after, err)
					}
					w.led("g", "b")
					if n := len(w.sessions()); n != 1 {
						w.Fatalf("cut after %v: %d sessions a minute later, want that of the leader", after, n)
					}
					w.resign(term)
					if err := errors.Join(a.Close(w.soon()), b.Close(w.soon())); err != nil {
						w.Fatal(err)
					}
				}
				if won == 0 || lost == 0 {
					w.Errorf("%d campaigns won, %d lost: not every stage was tested", won, lost)
				}
			})
		})
	}
}

// A candidate that withdraws just when the group falls vacant does not hold up
// the one behind it in line.
func TestCutWhileWaiting(t *testing.T) {
	const (
		roundTrip = 10 * time.Millisecond
		bound     = 8 * roundTrip
	)
	bubble(t, func(w *world) {
		leader := w.node(w.mem, "leader", func(c *lease.Config) { c.Candidate.Priority = -1 })
		a := w.node(newSlowStore(w.mem, roundTrip), "a")
		b := w.node(newSlowStore(w.mem, roundTrip), "b")
		w.win(a, "of-a") // a stands before b, and both keep their sessions
		w.win(b, "of-b")
		won, lost := 0, 0
		const early = 2 * roundTrip
		for after := time.Duration(0); after < early+4*roundTrip; after += roundTrip / 4 {
			term := w.win(leader, "g")
			cut := make(chan bool, 1)
			go func() { cut <- w.cut(w.elector(a, "g"), after) }()
			next := w.campaign(w.soon(), b, "g")
			time.Sleep(early)
			vacant := time.Now()
			w.resign(term)
			r := w.won(next)
			if took := r.at.Sub(vacant); took > bound {
				w.Fatalf("a withdrew %v after the vacancy: b leads %v after it", after-early, took)
			}
			w.resign(r.term)
			if <-cut {
				won++
			} else {
				lost++
			}
		}
		if won == 0 || lost == 0 {
			w.Errorf("%d campaigns won, %d lost: not every stage was tested", won, lost)
		}
	})
}

// A candidate that has withdrawn does not try when the group falls vacant, and
// leaves the line.
func TestWithdrawnLeavesTheLine(t *testing.T) {
	bubble(t, func(w *world) {
		store := newCountingStore(w.mem)
		leader, a := w.node(w.mem, "leader"), w.node(store, "a")
		term := w.win(leader, "g")
		w.cut(w.elector(a, "g"), time.Second)
		if n := len(w.sessions()); n != 2 {
			w.Errorf("%d in line at once", n)
		}
		time.Sleep(lease.Default().TTL)
		synctest.Wait()
		if n := len(w.sessions()); n != 1 {
			w.Errorf("%d in line a TTL later", n)
		}
		w.cut(w.elector(a, "g"), time.Second)
		w.resign(term)
		time.Sleep(time.Minute)
		if v := w.vacant("g"); v.Token != term.Token() || store.counted(acquire) != 0 {
			w.Errorf("%d acquires; the token went from %d to %d", store.counted(acquire), term.Token(), v.Token)
		}
	})
}

// However the end of the context and the win fall together, the campaign returns
// a term or an error, and what it won and did not return is given back.
func TestWinRacesWithCut(t *testing.T) {
	bubble(t, func(w *world) {
		store := newTrippingStore(w.mem)
		a, b := w.node(store, "a"), w.node(w.mem, "b")
		ea := w.elector(a, "g")
		rng := rand.New(rand.NewPCG(1, 1))
		won, lost := 0, 0
		for i := range 1000 {
			if i%50 == 0 {
				time.Sleep(time.Minute) // without a session it has further to go
			}
			ctx, cancel := context.WithCancelCause(w.Context())
			early, late := rng.IntN(40), rng.IntN(40)
			if i%2 == 0 {
				go func() {
					yield(early)
					cancel(errEnough)
				}()
			} else {
				on := []method{open, acquire, acquire, acquire}[rng.IntN(4)]
				store.set(on, func() {
					cancel(errEnough)
					yield(late)
				})
			}
			term, err := ea.Campaign(ctx)
			store.set("", nil)
			cancel(nil)
			switch {
			case (term == nil) == (err == nil):
				w.Fatalf("%v and %v", term, err)
			case err != nil && !errors.Is(err, errEnough):
				w.Fatal(err)
			case term != nil:
				won++
				if err := term.Check(); err != nil {
					w.Fatalf("the term that was won: %v", err)
				}
				w.resign(term)
			default:
				lost++
			}
			synctest.Wait()
			if v := w.read("g"); v.State != tenure.Vacant {
				w.Fatalf("the group is %v by %q with token %d after a campaign that returned %v", v.State, v.Candidate.ID, v.Token, err)
			}
			if i%100 == 0 {
				begin := time.Now()
				w.resign(w.win(b, "g"))
				if took := time.Since(begin); took > 100*time.Millisecond {
					w.Fatalf("the next leads only after %v", took)
				}
			}
		}
		if won < 10 || lost < 10 {
			w.Errorf("%d won, %d lost: they did not fall together", won, lost)
		}
		w.Logf("%d won, %d lost", won, lost)
	})
}

// One campaign for a group can wait at a time; a group that is led needs none; a
// context that has ended starts none. After each, a campaign works as ever.
func TestCampaignRefused(t *testing.T) {
	bubble(t, func(w *world) {
		store := newCountingStore(w.mem)
		a, b := w.node(store, "a"), w.node(w.mem, "b")
		e := w.elector(a, "g")

		over, cancel := context.WithCancelCause(context.Background())
		cancel(errEnough)
		if term, err := e.Campaign(over); term != nil || !errors.Is(err, errEnough) {
			w.Errorf("with a context that has ended: %v, %v", term, err)
		}
		synctest.Wait()
		if n := store.total() + store.counted(watch); n != 0 {
			w.Errorf("with a context that has ended: %d calls", n)
		}

		other := w.win(b, "g")
		first := w.campaign(w.soon(), a, "g")
		if term, err := e.Campaign(w.soon()); term != nil || !errors.Is(err, lease.ErrCampaigning) || !strings.Contains(err.Error(), `"g"`) {
			w.Errorf("a second one: %v, %v", term, err)
		}
		w.resign(w.win(a, "another"))
		w.resign(other)
		term := w.won(first).term

		again, err := e.Campaign(w.soon())
		if again != nil || err == nil || !strings.Contains(err.Error(), fmt.Sprintf(`group "g" is led by this node already, with token %d`, term.Token())) {
			w.Errorf("while it leads: %v, %v", again, err)
		}
		if err := term.Check(); err != nil {
			w.Errorf("the term that was disturbed: %v", err)
		}
		w.resign(term)
		w.win(a, "g")
	})
}

// While the work of an earlier term has not returned the node does not lead the
// group again: its own terms must not overlap either. Resign says that it has.
func TestCampaignAfterWork(t *testing.T) {
	bubble(t, func(w *world) {
		hung := newHungStore(w, w.mem)
		n := w.node(hung, "a")
		term := w.win(n, "g")
		hung.hang(keepAlive)
		_, _ = w.ended(term)
		hung.letGo()
		if _, err := w.elector(n, "g").Campaign(w.soon()); err == nil || !strings.Contains(err.Error(), "resign that term first") {
			w.Errorf("campaigning while work runs: %v", err)
		}
		w.resign(term)
		if again := w.win(n, "g"); again.Token() <= term.Token() {
			w.Errorf("token %d after %d", again.Token(), term.Token())
		}
		if err := term.Check(); !errors.Is(err, tenure.ErrExpired) {
			w.Errorf("the old term says %v", err)
		}
	})
}

// Resign returns when the store has confirmed, a round trip later. The first in
// line hears of it at the same time, and leads a round trip later: it does not
// wait for the one that has resigned, though that one stands before it.
func TestResign(t *testing.T) {
	const roundTrip = 100 * time.Millisecond
	bubble(t, func(w *world) {
		a, b := w.node(newSlowStore(w.mem, roundTrip), "a"), w.node(newSlowStore(w.mem, roundTrip), "b")
		term := w.win(a, "g")
		next := w.campaign(w.soon(), b, "g")
		time.Sleep(time.Minute)
		begin := time.Now()
		w.resign(term)
		if took := time.Since(begin); took != roundTrip {
			w.Errorf("Resign took %v, want %v", took, roundTrip)
		}
		w.vacant("g")
		if err := term.Check(); !errors.Is(err, tenure.ErrResigned) {
			w.Errorf("Check says %v", err)
		}
		r := w.won(next)
		if took := r.at.Sub(begin); took > 2*roundTrip {
			w.Errorf("the next leads after %v, want %v", took, 2*roundTrip)
		}
		if v := w.led("g", "b"); v.Terms[0].Reason != store.Resigned {
			w.Errorf("the record says %q", v.Terms[0].Reason)
		}
		w.resign(term) // what is done is done
		if err := r.term.Check(); err != nil {
			w.Errorf("resigning an old term ended the new one: %v", err)
		}
	})
}

// A transfer takes the round trips that it needs and waits for nothing: one to
// see that the successor is there, while the term goes on; then, without a
// leader, one to find its session, one to release, half of it to be heard of, and
// one to confirm.
func TestTransferLatency(t *testing.T) {
	const roundTrip = 100 * time.Millisecond
	bubble(t, func(w *world) {
		a, b := w.node(newSlowStore(w.mem, roundTrip), "a"), w.node(newSlowStore(w.mem, roundTrip), "b")
		term := w.win(a, "g")
		next := w.campaign(w.soon(), b, "g")
		time.Sleep(time.Minute)
		ended := make(chan time.Time, 1)
		context.AfterFunc(term.Context(), func() { ended <- time.Now() })
		begin := time.Now()
		if err := term.TransferTo(w.soon(), "b"); err != nil {
			w.Fatal(err)
		}
		if took := time.Since(begin); took > 3*roundTrip {
			w.Errorf("TransferTo took %v, want %v", took, 3*roundTrip)
		}
		r, end := w.won(next), <-ended
		if d := end.Sub(begin); d > roundTrip {
			w.Errorf("the term ended %v after the transfer began, want %v", d, roundTrip)
		}
		if d := r.at.Sub(end); d > 3*roundTrip {
			w.Errorf("without a leader for %v, want %v", d, 3*roundTrip)
		}
		w.Logf("ended after %v, led after %v", end.Sub(begin), r.at.Sub(begin))
	})
}

// A Resign that the store does not confirm says so when its context ends; the
// term is over all the same, and the release goes on without its caller.
func TestResignUnconfirmed(t *testing.T) {
	bubble(t, func(w *world) {
		hung := newHungStore(w, w.mem)
		n := w.node(hung, "a")
		term := w.win(n, "g")
		hung.hang(release)
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errEnough)
		defer cancel()
		err := term.Resign(ctx)
		if !errors.Is(err, errEnough) || !strings.Contains(err.Error(), `the release of group "g" (token 1) is not confirmed`) {
			w.Errorf("Resign: %v", err)
		}
		if err := term.Check(); !errors.Is(err, tenure.ErrResigned) {
			w.Errorf("Check: %v", err)
		}
		w.led("g", "a")
		hung.letGo()
		time.Sleep(2 * lease.Default().CallTimeout)
		w.vacant("g")
	})
}

// A release whose reply was lost is confirmed by the next try, also when no watch
// tells that the first had worked.
func TestResignLostReply(t *testing.T) {
	bubble(t, func(w *world) {
		for seed := range uint64(10) {
			flaky := newFlakyStore(w.mem, seed)
			n := w.node(flaky, "a")
			term := w.win(n, "g")
			flaky.lose(1, watch)
			flaky.setDown(true)
			synctest.Wait()
			flaky.setDown(false)
			flaky.lose(1, release)
			begin, done := time.Now(), make(chan time.Duration, 1)
			go func() {
				w.resign(term)
				done <- time.Since(begin)
			}()
			synctest.Wait()
			w.vacant("g")
			flaky.lose(0, release)
			if took := <-done; took > lease.Default().CallTimeout+lease.Default().BackoffMax || flaky.losses(release) != 1 {
				w.Errorf("resigned after %v and %d lost replies", took, flaky.losses(release))
			}
			flaky.lose(0, watch)
		}
	})
}

// TransferTo hands the group to the candidate that it names, past others in
// line, with the next token; it returns when the store has confirmed.
func TestTransfer(t *testing.T) {
	bubble(t, func(w *world) {
		a, b, c := w.node(w.mem, "a"), w.node(w.mem, "b", func(c *lease.Config) { c.Candidate.Priority = 9 }), w.node(w.mem, "c")
		term := w.win(a, "g")
		passed := w.campaign(w.soon(), b, "g")
		next := w.campaign(w.soon(), c, "g")
		time.Sleep(time.Minute)
		if err := term.TransferTo(w.soon(), "c"); err != nil {
			w.Fatal(err)
		}
		v := w.led("g", "c")
		if v.Terms[0].Reason != store.Transferred || v.Token != term.Token()+1 {
			w.Errorf("the record says %q and token %d after %d", v.Terms[0].Reason, v.Token, term.Token())
		}
		if err := term.Check(); !errors.Is(err, tenure.ErrTransferred) {
			w.Errorf("the old term says %v", err)
		}
		if r := w.won(next); r.term.Token() != v.Token || r.term.Check() != nil {
			w.Errorf("c leads with token %d: %v", r.term.Token(), r.term.Check())
		}
		select {
		case r := <-passed:
			w.Errorf("b was told %v", r)
		default:
		}
	})
}

// A successor that is unknown, dead, does not stand for the group or is the
// leader itself is refused, and the term goes on.
func TestTransferRefused(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.node(w.mem, "a")
		dead := w.node(w.mem, "dead")
		elsewhere := w.node(w.mem, "elsewhere", func(c *lease.Config) { c.Scope = store.Scope{"other-*"} })
		w.node(w.mem, "idle") // never campaigned, so it has no session
		w.resign(w.win(dead, "h"))
		w.win(elsewhere, "other-1")
		if err := dead.Close(w.soon()); err != nil {
			w.Fatal(err)
		}
		term := w.win(a, "g")
		for _, to := range []string{"nobody", "dead", "elsewhere", "idle", "a", ""} {
			if err := term.TransferTo(w.soon(), to); !errors.Is(err, store.ErrSuccessor) || !strings.Contains(err.Error(), fmt.Sprintf("%q", to)) {
				w.Errorf("to %q: %v", to, err)
			}
			if err := term.Check(); err != nil {
				w.Fatalf("after the refusal of %q: %v", to, err)
			}
		}
		w.led("g", "a")
	})
}

// A successor that stands in line but does not campaign gives back what it was
// handed: the group is free for whoever does.
func TestTransferToWhoDoesNotWant(t *testing.T) {
	bubble(t, func(w *world) {
		a, b, c := w.node(w.mem, "a"), w.node(w.mem, "b"), w.node(w.mem, "c")
		w.win(b, "another") // keeps b in line
		term := w.win(a, "g")
		next := w.campaign(w.soon(), c, "g")
		time.Sleep(time.Minute)
		begin := time.Now()
		if err := term.TransferTo(w.soon(), "b"); err != nil {
			w.Fatal(err)
		}
		if r := w.won(next); r.at.Sub(begin) > 200*time.Millisecond || r.term.Token() != term.Token()+2 {
			w.Errorf("c leads after %v with token %d", r.at.Sub(begin), r.term.Token())
		}
	})
}

// A successor that dies after it was found is ErrSuccessor as well; the term is
// over then, and the group vacant.
func TestTransferToTheDying(t *testing.T) {
	const roundTrip = 100 * time.Millisecond
	bubble(t, func(w *world) {
		a, b := w.node(newSlowStore(w.mem, roundTrip), "a"), w.node(w.mem, "b")
		term := w.win(a, "g")
		w.win(b, "another")
		time.Sleep(time.Minute)
		line := w.sessions()
		i := slices.IndexFunc(line, func(s store.Session) bool { return s.Candidate.ID == "b" })
		// On the way back of the answer that still has it.
		time.AfterFunc(roundTrip-time.Millisecond, func() { _ = w.mem.End(context.Background(), line[i].ID, store.Forced) })
		if err := term.TransferTo(w.soon(), "b"); !errors.Is(err, store.ErrSuccessor) {
			w.Errorf("TransferTo: %v", err)
		}
		if err := term.Check(); !errors.Is(err, tenure.ErrTransferred) {
			w.Errorf("Check: %v", err)
		}
		w.vacant("g")
	})
}

// A request reaches the leader with its next beat; it is answered when the work
// has returned, and for the cool-down the leader does not campaign, even if
// nobody else does.
func TestStepDown(t *testing.T) {
	const coolDown = 30 * time.Second
	bubble(t, func(w *world) {
		a := w.node(w.mem, "a")
		term := w.win(a, "g")
		held := w.read("g")
		time.Sleep(time.Minute + time.Second/3)
		asked := time.Now()
		w.ask(store.Request{ID: "1", Verb: store.StepDown, Token: term.Token(), Reason: "rolling restart", CoolDown: coolDown})
		at, err := w.ended(term)
		if !errors.Is(err, tenure.ErrResigned) || at.Sub(asked) > lease.Default().Beat {
			w.Errorf("the term ended %v after it was asked for: %v", at.Sub(asked), err)
		}
		time.Sleep(time.Second)
		if got := w.answered(held.Holder, "1"); got.Outcome != "" {
			w.Errorf("answered %q before the work has returned", got)
		}
		w.led("g", "a")
		w.resign(term)
		synctest.Wait()
		if got := w.answered(held.Holder, "1"); got.Outcome != store.Done {
			w.Errorf("answered %q", got)
		}
		if v := w.vacant("g"); v.Terms[0].Reason != store.SteppedDown {
			w.Errorf("the record says %q", v.Terms[0].Reason)
		}
		r := w.won(w.campaign(w.soon(), a, "g"))
		if waited := r.at.Sub(at); waited < coolDown || waited > coolDown+time.Second {
			w.Errorf("led again %v after it was asked to step down for %v", waited, coolDown)
		}
	})
}

func (w *world) answered(id store.SessionID, request string) store.Answer {
	w.Helper()
	a, err := w.mem.Answered(context.Background(), id, request)
	if err != nil {
		w.Fatal(err)
	}
	return a
}

// A request to transfer is carried out within a beat; one that cannot be is
// refused within a beat, with the reason, and the term goes on.
func TestAskedTransfer(t *testing.T) {
	bubble(t, func(w *world) {
		a, b := w.node(w.mem, "a"), w.node(w.mem, "b")
		term := w.win(a, "g")
		obedient(term)
		held := w.read("g")
		next := w.campaign(w.soon(), b, "g")
		time.Sleep(time.Minute)
		for id, tt := range map[string]struct {
			r    store.Request
			says string
		}{
			"unknown": {store.Request{Verb: store.Transfer, To: "nobody"}, `candidate "nobody" does not stand for group "g"`},
			"itself":  {store.Request{Verb: store.Transfer, To: "a"}, `group "g" is led by "a" already`},
			"old":     {store.Request{Verb: store.StepDown, Token: term.Token() + 1}, `group "g" is led with token 1, not 2`},
		} {
			tt.r.ID = id
			w.ask(tt.r)
			time.Sleep(lease.Default().Beat)
			synctest.Wait()
			if got := w.answered(held.Holder, id); got.Outcome != store.Refused || got.Detail != tt.says {
				w.Errorf("%s: answered %q, want %q", id, got, tt.says)
			}
			if err := term.Check(); err != nil {
				w.Fatalf("%s: %v", id, err)
			}
		}

		asked := time.Now()
		w.ask(store.Request{ID: "good", Verb: store.Transfer, To: "b", Token: term.Token()})
		if r := w.won(next); r.at.Sub(asked) > lease.Default().Beat || r.term.Token() != term.Token()+1 {
			w.Errorf("b leads %v later with token %d", r.at.Sub(asked), r.term.Token())
		}
		synctest.Wait()
		if err := context.Cause(term.Context()); !errors.Is(err, tenure.ErrTransferred) {
			w.Errorf("the old term says %v", err)
		}
		if got := w.answered(held.Holder, "good"); got.Outcome != store.Done {
			w.Errorf("answered %q", got)
		}
	})
}

// Leader asks the store; what it cannot answer is unknown, and never vacant.
func TestLeader(t *testing.T) {
	bubble(t, func(w *world) {
		flaky := newFlakyStore(w.mem, 1)
		e := w.elector(w.node(flaky, "watcher"), "g")
		is := func(state tenure.State, candidate string, token fence.Token) {
			w.Helper()
			l, err := e.Leader(w.soon())
			if err != nil || l.Group != "g" || l.State != state || l.Candidate.ID != candidate || l.Token != token {
				w.Errorf("%+v, %v; want %v by %q with token %d", l, err, state, candidate, token)
			}
		}
		is(tenure.Vacant, "", 0)
		a := w.node(w.mem, "a")
		term := w.win(a, "g")
		is(tenure.Led, "a", 1)
		w.resign(term)
		is(tenure.Vacant, "a", 1)
		flaky.setDown(true)
		if l, err := e.Leader(w.soon()); !errors.Is(err, errDown) || l.State != tenure.Unknown || l.Group != "g" || !strings.Contains(err.Error(), `"g"`) {
			w.Errorf("%+v, %v", l, err)
		}
		flaky.setDown(false)
		flaky.lose(1, read)
		for range 10 { // some of them by silence
			begin := time.Now()
			if l, err := e.Leader(w.soon()); err == nil || l.State != tenure.Unknown || time.Since(begin) > lease.Default().CallTimeout {
				w.Errorf("%+v, %v after %v", l, err, time.Since(begin))
			}
		}
	})
}

// follow keeps what Leaders yields, until ctx ends, and rests after each.
func (w *world) follow(ctx context.Context, e *lease.Elector, rest time.Duration) *followed {
	f := &followed{done: make(chan struct{})}
	go func() {
		defer close(f.done)
		for l, err := range e.Leaders(ctx) {
			f.mu.Lock()
			f.all = append(f.all, sight{l, err})
			f.mu.Unlock()
			time.Sleep(rest)
		}
	}()
	synctest.Wait()
	return f
}

type sight struct {
	tenure.Leader
	err error
}

type followed struct {
	done chan struct{}
	mu   sync.Mutex
	all  []sight
}

// take returns what was seen since it was last called, in short.
func (f *followed) take() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	var seen []string
	for _, s := range f.all {
		line := fmt.Sprintf("%v %s %d", s.State, s.Candidate.ID, s.Token)
		if s.Reason != "" {
			line += " " + s.Reason
		}
		if s.err != nil {
			line = fmt.Sprintf("%v: %v", s.State, errors.Is(s.err, errDown))
		}
		seen = append(seen, line)
	}
	f.all = nil
	return seen
}

func (w *world) saw(f *followed, want ...string) {
	w.Helper()
	if got := f.take(); !slices.Equal(got, want) {
		w.Errorf("saw %q, want %q", got, want)
	}
}

// Leaders begins with what is so now, whatever that is, then tells each change;
// it ends with its context, without another word.
func TestLeaders(t *testing.T) {
	bubble(t, func(w *world) {
		a, b, o := w.node(w.mem, "a"), w.node(w.mem, "b"), w.elector(w.node(w.mem, "observer"), "g")
		ctx, cancel := context.WithCancel(w.Context())
		first := w.follow(ctx, o, 0)
		w.saw(first, "vacant  0")
		term := w.win(a, "g")
		w.saw(first, "led a 1")
		second := w.follow(ctx, o, 0)
		w.saw(second, "led a 1")
		next := w.campaign(w.soon(), b, "g")
		if err := term.TransferTo(w.soon(), "b"); err != nil {
			w.Fatal(err)
		}
		w.saw(first, "vacant a 1 transferred", "led b 2")
		w.saw(second, "vacant a 1 transferred", "led b 2")
		w.resign(w.won(next).term)
		w.saw(first, "vacant b 2 resigned")
		third := w.follow(ctx, o, 0)
		w.saw(third, "vacant b 2 resigned")
		time.Sleep(time.Hour)
		w.saw(third)
		cancel()
		for _, f := range []*followed{first, second, third} {
			<-f.done
			if f == third {
				w.saw(f)
			}
		}
	})
}

// A consumer that is slow learns of every term that there was meanwhile, in
// order, also of more than a record remembers; whether the group was never led
// when it looked first, or was.
func TestLeadersSlowConsumer(t *testing.T) {
	for _, before := range []int{0, 1} {
		for _, meanwhile := range []int{1, 3, store.TermsKept, store.TermsKept + 3} {
			t.Run(fmt.Sprintf("%d then %d", before, meanwhile), func(t *testing.T) {
				bubble(t, func(w *world) {
					nodes := []*lease.Node{w.node(w.mem, "n0"), w.node(w.mem, "n1")}
					lead := func(i int) []string {
						term := w.win(nodes[i%2], "g")
						time.Sleep(time.Second)
						w.resign(term)
						return []string{fmt.Sprintf("led n%d %d", i%2, term.Token()), fmt.Sprintf("vacant n%d %d resigned", i%2, term.Token())}
					}
					now := "vacant  0"
					for i := range before {
						now = lead(i)[1]
					}
					ctx, cancel := context.WithCancel(w.Context())
					defer cancel()
					f := w.follow(ctx, w.elector(w.node(w.mem, "observer"), "g"), time.Minute)
					w.saw(f, now)
					var want []string
					for i := range meanwhile {
						want = append(want, lead(i)...)
					}
					time.Sleep(30 * time.Minute)
					w.saw(f, want...)
				})
			})
		}
	}
}

// While the store cannot be seen, Leaders says that it does not know, with the
// error; when it can, what is so, also if nothing has changed.
func TestLeadersUnknown(t *testing.T) {
	bubble(t, func(w *world) {
		flaky := newFlakyStore(w.mem, 1)
		o := w.elector(w.node(flaky, "observer"), "g")
		a := w.node(w.mem, "a")
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		never := w.follow(ctx, w.elector(w.node(flaky, "another"), "never"), 0)
		f := w.follow(ctx, o, 0)
		w.saw(f, "vacant  0")
		w.saw(never, "vacant  0")
		blind := func(between func()) {
			w.Helper()
			never.take()
			flaky.setDown(true)
			time.Sleep(time.Minute)
			for _, f := range []*followed{f, never} {
				lines := f.take()
				if n := len(lines); n < 20 || n > 60 || slices.ContainsFunc(lines, func(l string) bool { return l != "unknown: true" }) {
					w.Errorf("in a minute without the store it saw %d times %q", n, slices.Compact(lines))
				}
			}
			between()
			flaky.setDown(false)
			time.Sleep(lease.Default().BackoffMax)
		}
		blind(func() {})
		w.saw(f, "vacant  0")
		w.saw(never, "vacant  0")
		term := w.win(a, "g")
		w.saw(f, "led a 1")
		blind(func() {})
		w.saw(f, "led a 1")
		blind(func() {
			w.resign(term)
			term = w.win(a, "g")
		})
		w.saw(f, "vacant a 1 resigned", "led a 2")
		w.resign(term)
		w.saw(f, "vacant a 2 resigned")
		blind(func() {})
		w.saw(f, "vacant a 2 resigned")
	})
}

// A loop over Leaders that is left early, or whose context has ended before,
// leaves nothing running: the bubble would tell.
func TestLeadersLeftEarly(t *testing.T) {
	bubble(t, func(w *world) {
		flaky := newFlakyStore(w.mem, 1)
		e := w.elector(w.node(flaky, "a"), "g")
		for range 3 {
			for l, err := range e.Leaders(context.Background()) {
				if err != nil || l.State != tenure.Vacant {
					w.Errorf("%v, %v", l, err)
				}
				break
			}
		}
		flaky.setDown(true)
		for _, err := range e.Leaders(context.Background()) {
			if err == nil {
				w.Error("no error from a store that is down")
			}
			break
		}
		over, cancel := context.WithCancel(context.Background())
		cancel()
		for l, err := range e.Leaders(over) {
			w.Errorf("with a context that has ended: %v, %v", l, err)
		}
	})
}

// Trust is measured on the clock that the node is given. When that leaps ahead,
// as after a suspend, Check fails at once, and the context ends when the node
// next wakes up: within a beat, before it would beat again.
func TestClockJump(t *testing.T) {
	start := func(w *world) (*jumpyClock, *countingStore, *tenure.Term) {
		c := &jumpyClock{Clock: w.clock}
		store := newCountingStore(w.mem)
		term := w.win(w.node(store, "a", func(cfg *lease.Config) { cfg.Clock = c }), "g")
		time.Sleep(time.Minute + lease.Default().Beat/2)
		return c, store, term
	}
	t.Run("check", func(t *testing.T) {
		bubble(t, func(w *world) {
			c, _, term := start(w)
			trust := term.Remaining()
			c.jump(trust - 1)
			if err := term.Check(); err != nil {
				w.Errorf("a nanosecond before the end: %v", err)
			}
			c.jump(1)
			if err := term.Check(); !errors.Is(err, tenure.ErrExpired) {
				w.Errorf("Check says %v", err)
			}
			if err := context.Cause(term.Context()); !errors.Is(err, tenure.ErrExpired) {
				w.Errorf("the context says %v", err)
			}
		})
	})
	t.Run("context", func(t *testing.T) {
		bubble(t, func(w *world) {
			c, store, term := start(w)
			beats := store.counted(keepAlive)
			c.jump(term.Remaining())
			begin := time.Now()
			at, err := w.ended(term)
			if !errors.Is(err, tenure.ErrExpired) || at.Sub(begin) > lease.Default().Beat {
				w.Errorf("the context ended %v after the leap: %v", at.Sub(begin), err)
			}
			synctest.Wait()
			if n := store.counted(keepAlive) - beats; n != 0 {
				w.Errorf("%d beats after the leap: the term could have gone on", n)
			}
			w.resign(term)
			synctest.Wait()
			w.vacant("g") // its session was closed when the work had returned
		})
	})
}

// fleet is some nodes that fight over one group, and what they saw of it.
type fleet struct {
	*world
	ctx context.Context

	mu    sync.Mutex
	last  fence.Token
	terms int
	holds []*tenure.Term // the newest of each member
}

// begun takes note of a term: its token is above every other's, and nobody else
// believes. Whoever led before has known that it is over since before the group
// could be granted again.
func (f *fleet) begun(member int, term *tenure.Term) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if term.Token() <= f.last {
		f.Errorf("token %d after %d", term.Token(), f.last)
	}
	f.holds[member] = nil
	if n := f.believers(); n != 0 {
		f.Errorf("%d believe that they lead when n%d begins with token %d", n, member, term.Token())
	}
	f.last = term.Token()
	f.terms++
	f.holds[member] = term
}

// believers counts them. f.mu is held.
func (f *fleet) believers() (n int) {
	for _, term := range f.holds {
		if term != nil && term.Check() == nil {
			n++
		}
	}
	return n
}

// member leads, and by turns gives up, hands over, and is restarted.
func (f *fleet) member(i int, store store.Store) {
	rng := rand.New(rand.NewPCG(uint64(i), 2))
	for f.ctx.Err() == nil {
		n, err := lease.New(store, f.config(fmt.Sprintf("n%d", i)))
		if err != nil {
			f.Error(err)
			return
		}
		e, err := n.Elector("g")
		if err != nil {
			f.Error(err)
			return
		}
		for range 1 + rng.IntN(6) {
			term, err := e.Campaign(f.ctx)
			if err != nil {
				if f.ctx.Err() == nil {
					f.Error(err)
				}
				break
			}
			f.begun(i, term)
			select {
			case <-term.Context().Done():
			case <-time.After(time.Duration(rng.Int64N(int64(20 * time.Second)))):
			case <-f.ctx.Done():
			}
			if rng.IntN(3) == 0 {
				_ = term.TransferTo(f.ctx, fmt.Sprintf("n%d", rng.IntN(len(f.holds))))
			}
			if rng.IntN(5) == 0 {
				obedient(term)
				break
			}
			_ = term.Resign(f.ctx)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		_ = n.Close(ctx) // that its session is closed may not be confirmed
		cancel()
	}
}

// Whatever replies are lost, after the call was made: tokens only grow, nobody
// believes beside another, and leadership comes back.
func TestLostReplies(t *testing.T) {
	const members = 3
	bubble(t, func(w *world) {
		ctx, cancel := context.WithTimeout(w.Context(), 200*time.Minute)
		defer cancel()
		f := &fleet{world: w, ctx: ctx, holds: make([]*tenure.Term, members)}
		var stores []*flakyStore
		var work sync.WaitGroup
		for i := range members {
			store := newFlakyStore(newSlowStore(w.mem, 5*time.Millisecond), uint64(i))
			store.lose(0.3, open, closing, acquire, release)
			store.lose(0.2, keepAlive, read, sessions, answer)
			stores = append(stores, store)
			work.Go(func() { f.member(i, store) })
		}
		rng := rand.New(rand.NewPCG(3, 3))
		led, longest, samples := time.Now(), time.Duration(0), 0
		for {
			time.Sleep(time.Duration(rng.Int64N(int64(time.Second))))
			synctest.Wait() // nothing moves while we count
			if ctx.Err() != nil {
				break
			}
			f.mu.Lock()
			n := f.believers()
			f.mu.Unlock()
			if n > 1 {
				w.Fatalf("%d believe that they lead", n)
			}
			if n == 1 {
				led = time.Now()
			}
			longest = max(longest, time.Since(led))
			samples++
		}
		work.Wait()
		w.Logf("%d terms in %d samples, longest time without a leader %v", f.terms, samples, longest)
		if f.terms < 300 {
			w.Errorf("only %d terms", f.terms)
		}
		// A session whose end was not confirmed expires, and a few calls without an
		// answer come on top.
		if most := 3 * lease.Default().TTL; longest > most {
			w.Errorf("without a leader for %v, want %v at most", longest, most)
		}
		for _, m := range []method{open, closing, acquire, release, keepAlive} {
			n := 0
			for _, s := range stores {
				n += s.losses(m)
			}
			if n < 20 {
				w.Errorf("only %d replies to %s were lost", n, m)
			}
		}
	})
}

// What was read last can be recalled when the store does not answer any more,
// with its age; what was never read is unknown, not vacant.
func TestRecall(t *testing.T) {
	bubble(t, func(w *world) {
		n := w.node(w.mem, "a")
		e := w.elector(n, "g")
		if l, age := e.Recall(); l.State != tenure.Unknown || age != 0 {
			t.Errorf("never asked, and recalled %+v of %v ago", l, age)
		}
		term := w.win(n, "g")
		if _, err := e.Leader(w.soon()); err != nil {
			t.Fatal(err)
		}
		w.mem.Close()
		time.Sleep(time.Minute)
		if l, err := e.Leader(w.soon()); err == nil {
			t.Errorf("the store is down, and Leader answers %+v", l)
		}
		l, age := e.Recall()
		if l.State != tenure.Led || l.Candidate.ID != "a" || l.Token != term.Token() || age < time.Minute || age > 2*time.Minute {
			t.Errorf("recalled %+v of %v ago, want a with token %d of a minute ago", l, age, term.Token())
		}
	})
}

// Who resigns hands over to the candidate that is first in line, with one call and without
// an acquire.
func TestResignHandsOver(t *testing.T) {
	bubble(t, func(w *world) {
		one := func(c *lease.Config) { c.Scope = store.Scope{"g"} }
		st := newCountingStore(w.mem)
		term := w.win(w.node(st, "a", one), "g")
		next := w.campaign(w.Context(), w.node(st, "b", one), "g")
		time.Sleep(time.Minute)
		acquires := st.counted(acquire)
		w.resign(term)
		if got := w.won(next).term; got.Token() != term.Token()+1 {
			w.Errorf("token %d after %d", got.Token(), term.Token())
		}
		if n := st.counted(acquire) - acquires; n != 0 || st.counted(release) != 1 {
			w.Errorf("%d acquires and %d releases, want one release", n, st.counted(release))
		}
		w.led("g", "b")
		if h, err := w.mem.History(w.Context(), "g", store.Page{}); err != nil || len(h) != 2 || h[1].Reason != store.Resigned {
			w.Errorf("the history is %+v, %v", h, err)
		}
	})
}
