package electortest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/elector"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// twisted is an elector that behaves like a correct one, except for what its fields replace.
type twisted struct {
	tenure.Elector
	stands func(ctx context.Context, candidate string) error

	campaign  func(context.Context, tenure.Elector) (*tenure.Term, error)
	leader    func(context.Context, tenure.Elector) (tenure.Leader, error)
	leaders   func(context.Context, tenure.Elector) iter.Seq2[tenure.Leader, error]
	token     func(fence.Token) fence.Token
	remaining func(honest *tenure.Term) func() time.Duration
	ended     func(honest *tenure.Term)                                       // the leader has ended its term
	expired   func(end func(error) bool, cause error)                         // the engine has ended the term
	begun     func(end func(error) bool)                                      // the term was granted
	successor func(context.Context, string) error                             // instead of stands
	release   func(ctx context.Context, honest *tenure.Term, to string) error // work has returned
}

func (e *twisted) Campaign(ctx context.Context) (*tenure.Term, error) {
	campaign := tenure.Elector.Campaign
	if e.campaign != nil {
		campaign = func(h tenure.Elector, ctx context.Context) (*tenure.Term, error) { return e.campaign(ctx, h) }
	}
	honest, err := campaign(e.Elector, ctx)
	if err != nil {
		return nil, err
	}
	remaining := honest.Remaining
	if e.remaining != nil {
		remaining = e.remaining(honest)
	}
	token := honest.Token()
	if e.token != nil {
		token = e.token(token)
	}
	term, end := elector.NewTerm(elector.TermConfig{
		Group: honest.Group(), Token: token, Deployment: honest.Stamp().Deployment, Candidate: honest.Candidate(),
		Trust: elector.NewTrust(countdown(remaining)), Grant: &twistedGrant{e, honest},
	})
	context.AfterFunc(honest.Context(), func() {
		cause := errors.Unwrap(context.Cause(honest.Context()))
		if e.expired != nil {
			e.expired(end, cause)
			return
		}
		end(cause)
	})
	if e.begun != nil {
		e.begun(end)
	}
	return term, nil
}

func (e *twisted) Leader(ctx context.Context) (tenure.Leader, error) {
	if e.leader != nil {
		return e.leader(ctx, e.Elector)
	}
	return e.Elector.Leader(ctx)
}

func (e *twisted) Leaders(ctx context.Context) iter.Seq2[tenure.Leader, error] {
	if e.leaders != nil {
		return e.leaders(ctx, e.Elector)
	}
	return e.Elector.Leaders(ctx)
}

type twistedGrant struct {
	*twisted
	honest *tenure.Term
}

func (g *twistedGrant) Ended(error) {
	if g.ended != nil {
		g.ended(g.honest)
	}
}

func (g *twistedGrant) Successor(ctx context.Context, candidate string) error {
	if g.successor != nil {
		return g.successor(ctx, candidate)
	}
	return g.stands(ctx, candidate)
}

func (g *twistedGrant) Suspect(context.Context, fence.Token) error { return nil }

func (g *twistedGrant) Release(ctx context.Context, to string) error {
	switch {
	case g.release != nil:
		return g.release(ctx, g.honest, to)
	case to != "" && g.honest.Check() == nil:
		return g.honest.TransferTo(ctx, to)
	default:
		return g.honest.Resign(ctx)
	}
}

// countdown is a clock on which a trust that was never set has this much left.
type countdown func() time.Duration

func (c countdown) Now() clock.Instant { return clock.Instant(-c()) }

func (countdown) NewTimer() clock.Timer { panic("nobody sets a timer on a countdown") }

// twist returns an engine of correct processes with twisted electors.
func twist(st store.Store, how func(*twisted)) Engine {
	e := leaseEngine(st)
	start := e.Start
	e.Start = func(t *testing.T, group, id string) Process {
		p := start(t, group, id).(process)
		w := &twisted{Elector: p.elector, stands: func(ctx context.Context, candidate string) error {
			line, err := st.Sessions(ctx, store.Scope{group}, store.Page{})
			if err == nil && !slices.ContainsFunc(line, func(s store.Session) bool { return s.Candidate.ID == candidate }) {
				err = tenure.ErrSuccessor
			}
			return err
		}}
		how(w)
		p.elector = w
		return p
	}
	return e
}

// wrong lists electors that each break the contract in one way, and the cases that must
// report it, with part of the error.
var wrong = []struct {
	name   string
	how    func(*twisted)
	caught map[string]string
}{
	{"releases before work has returned", func(e *twisted) {
		e.ended = func(honest *tenure.Term) {
			go func() { _ = honest.Resign(context.Background()) }()
		}
	}, map[string]string{
		"baton":          "b began before the work of a had returned",
		"transfer baton": "b began before the work of a had returned",
		"hung work":      "b leads with token 2, and should be waiting",
	}},

	{"campaigns under its own work", func(e *twisted) {
		var last *tenure.Term
		e.campaign = func(ctx context.Context, h tenure.Elector) (*tenure.Term, error) {
			if last != nil {
				_ = last.Resign(ctx)
			}
			var err error
			last, err = h.Campaign(ctx)
			return last, err
		}
	}, map[string]string{"heal": "the work of its own earlier term has not returned"}},

	{"believes for ever", func(e *twisted) {
		e.remaining = func(*tenure.Term) func() time.Duration {
			return func() time.Duration { return ttl }
		}
		e.expired = func(func(error) bool, error) {}
	}, map[string]string{
		"paused check": "the end of token 1 is told as <nil>",
		"paused end":   "the context of token 1 has not ended",
		"partition":    "the one that is cut off stops believing: not in",
		"heal":         "the context of token 1 has not ended",
	}},

	{"believes too long", func(e *twisted) {
		e.remaining = func(honest *tenure.Term) func() time.Duration {
			return func() time.Duration {
				if r := honest.Remaining(); r > 0 {
					return r
				}
				return ttl // until expired ends the term
			}
		}
		e.expired = func(end func(error) bool, cause error) { time.AfterFunc(ttl, func() { end(cause) }) }
	}, map[string]string{"partition": "after another led"}},

	{"its context does not end", func(e *twisted) {
		e.expired = func(func(error) bool, error) {}
	}, map[string]string{
		"paused end": "the context of token 1 has not ended",
		"heal":       "the context of token 1 has not ended",
	}},

	{"uses a token twice", func(e *twisted) {
		e.token = func(t fence.Token) fence.Token { return (t + 1) / 2 }
	}, map[string]string{
		"crash":  `token 1 was granted to "b" after token 1`,
		"tokens": `token 1 was granted to "b" after token 1`,
	}},

	{"elects whoever asks", func(e *twisted) {
		e.campaign = func(ctx context.Context, h tenure.Elector) (*tenure.Term, error) {
			trust := elector.NewTrust(countdown(func() time.Duration { return ttl }))
			t, _ := elector.NewTerm(elector.TermConfig{Group: "g", Token: fence.Token(time.Now().UnixMicro() % 1e12), Deployment: "d", Trust: trust, Grant: nobody{}})
			return t, nil
		}
	}, map[string]string{
		"first":        "Leader: group",
		"second waits": "and should be waiting",
	}},

	{"gives nothing up", func(e *twisted) {
		e.release = func(context.Context, *tenure.Term, string) error { return nil }
	}, map[string]string{
		"resign":            "b has not won",
		"panicking work":    "b has not won",
		"done":              "b has not won",
		"cancelled leading": "b has not won",
		"seal refused":      "the sink was to be sealed 1 times",
		"seal hangs":        "the sink was to be sealed 1 times",
	}},

	{"loses every term at once", func(e *twisted) {
		e.begun = func(end func(error) bool) { end(tenure.ErrLost) }
	}, map[string]string{
		"first":        "token 1 should still lead",
		"failing work": "with pauses of",
	}},

	{"goes on with a campaign that was called off", func(e *twisted) {
		e.campaign = func(ctx context.Context, h tenure.Elector) (*tenure.Term, error) {
			won := make(chan *tenure.Term, 1)
			failed := make(chan error, 1)
			go func() {
				t, err := h.Campaign(context.WithoutCancel(ctx))
				if err != nil {
					failed <- err
				} else {
					won <- t
				}
			}()
			select {
			case t := <-won:
				return t, nil
			case err := <-failed:
				return nil, err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}, map[string]string{"cancelled waiting": "c has not won"}},

	{"forgets what it won when it is called off", func(e *twisted) {
		e.campaign = func(ctx context.Context, h tenure.Elector) (*tenure.Term, error) {
			t, err := h.Campaign(ctx)
			if err == nil {
				time.Sleep(ttl / 20)
				err = ctx.Err()
			}
			return t, err
		}
	}, map[string]string{"cancelled winning": "c has not won"}},

	{"cannot be called off", func(e *twisted) {
		e.campaign = func(ctx context.Context, h tenure.Elector) (*tenure.Term, error) {
			return h.Campaign(context.WithoutCancel(ctx))
		}
	}, map[string]string{"cancelled waiting": "the campaign returns: not in"}},

	{"hands over to anybody", func(e *twisted) {
		e.successor = func(context.Context, string) error { return nil }
	}, map[string]string{
		"no successor":   "token 1 should still lead",
		"dead successor": "token 1 should still lead",
	}},

	{"hands over to nobody in particular", func(e *twisted) {
		e.release = func(ctx context.Context, h *tenure.Term, _ string) error { return h.Resign(ctx) }
	}, map[string]string{"transfer": "c has not won"}},

	{"says vacant when it cannot see", func(e *twisted) {
		e.leader = func(ctx context.Context, h tenure.Elector) (tenure.Leader, error) {
			l, err := h.Leader(ctx)
			if err != nil {
				l.State = tenure.Vacant
			}
			return l, nil
		}
		e.leaders = func(ctx context.Context, h tenure.Elector) iter.Seq2[tenure.Leader, error] {
			return func(yield func(tenure.Leader, error) bool) {
				for l, err := range h.Leaders(ctx) {
					if err != nil {
						l.State = tenure.Vacant
					}
					if !yield(l, nil) {
						return
					}
				}
			}
		}
	}, map[string]string{"blind": "told: vacant"}},

	{"says nothing when it cannot see", func(e *twisted) {
		e.leaders = func(ctx context.Context, h tenure.Elector) iter.Seq2[tenure.Leader, error] {
			return func(yield func(tenure.Leader, error) bool) {
				for l, err := range h.Leaders(ctx) {
					if err == nil && !yield(l, nil) {
						return
					}
				}
			}
		}
	}, map[string]string{"blind": "cannot see: not in"}},

	{"answers from memory", func(e *twisted) {
		var last tenure.Leader
		e.leader = func(ctx context.Context, h tenure.Elector) (tenure.Leader, error) {
			if l, err := h.Leader(ctx); err == nil {
				last = l
			}
			return last, nil
		}
	}, map[string]string{"blind": "want unknown and why"}},

	{"tells of changes, but not of now", func(e *twisted) {
		e.leaders = func(ctx context.Context, h tenure.Elector) iter.Seq2[tenure.Leader, error] {
			return func(yield func(tenure.Leader, error) bool) {
				first := true
				for l, err := range h.Leaders(ctx) {
					if !first && !yield(l, err) {
						return
					}
					first = false
				}
			}
		}
	}, map[string]string{"leaders": "who leads now: not in"}},

	{"looks now and then", func(e *twisted) {
		e.leaders = func(ctx context.Context, h tenure.Elector) iter.Seq2[tenure.Leader, error] {
			return func(yield func(tenure.Leader, error) bool) {
				for ctx.Err() == nil {
					if l, err := h.Leader(ctx); ctx.Err() == nil && !yield(l, err) {
						return
					}
					time.Sleep(ttl / 2)
				}
			}
		}
	}, map[string]string{"leaders": "was not told of the term with token"}},
}

// nobody is the grant of a term that was never granted.
type nobody struct{}

func (nobody) Ended(error)                                {}
func (nobody) Successor(context.Context, string) error    { return nil }
func (nobody) Suspect(context.Context, fence.Token) error { return nil }
func (nobody) Release(context.Context, string) error      { return nil }

func find(t *testing.T, name string) testCase {
	t.Helper()
	i := slices.IndexFunc(cases, func(tc testCase) bool { return tc.name == name })
	if i < 0 {
		t.Fatalf("there is no case %q", name)
	}
	return cases[i]
}

// catch runs a case against an engine that breaks it, and requires an error. As in examine, a
// run on a paused machine proves nothing.
func catch(t *testing.T, e Engine, name, says string) {
	t.Helper()
	for range attempts {
		watch := watchStalls()
		failures := once(t, e, find(t, name))
		stall := watch.stop()
		if slices.ContainsFunc(failures, func(f error) bool { return strings.Contains(f.Error(), says) }) {
			return
		}
		if stall < e.Lease/5 {
			t.Errorf("the case %q has found %q, want %q", name, failures, says)
			return
		}
		t.Logf("the machine stood still for %v: the case %q has found %q", stall, name, failures)
	}
	t.Errorf("could not tell in the case %q: the machine stood still %d times", name, attempts)
}

// Every wrong elector is caught by every case that should catch it.
func TestWrong(t *testing.T) {
	for _, w := range wrong {
		for name, says := range w.caught {
			t.Run(fmt.Sprintf("%s/%s", w.name, name), func(t *testing.T) {
				t.Parallel()
				store := mem.New(mem.Options{})
				defer store.Close()
				catch(t, twist(store, w.how), name, says)
			})
		}
	}
}

// unstoppable is a process that does not stop when it is closed.
type unstoppable struct{ Process }

func (unstoppable) Close(context.Context) error { return nil }

// A process that claims to be closed but is not is caught.
func TestNotClosed(t *testing.T) {
	store := mem.New(mem.Options{})
	defer store.Close()
	e := leaseEngine(store)
	start := e.Start
	var ends []Process
	e.Start = func(t *testing.T, group, id string) Process {
		p := start(t, group, id)
		ends = append(ends, p)
		return unstoppable{p}
	}
	catch(t, e, "closed", "a campaign of the closed process returns: not in")
	for _, p := range ends {
		p.Crash()
	}
}

// Twisted electors without a replacement pass all cases, so wrong ones are caught for their
// mistake only.
func TestTwistedNot(t *testing.T) {
	store := mem.New(mem.Options{})
	t.Cleanup(store.Close)
	Run(t, twist(store, func(*twisted) {}))
}

// Every case has a unique name, a claim, and an elector that breaks it.
func TestCases(t *testing.T) {
	for i, tc := range cases {
		if tc.name == "" || tc.claim == "" || tc.run == nil {
			t.Errorf("case %d is not complete", i)
		}
		if slices.ContainsFunc(cases[:i], func(o testCase) bool { return o.name == tc.name }) {
			t.Errorf("there are two cases %q", tc.name)
		}
		breaks := tc.name == "closed" // by TestNotClosed
		for _, w := range wrong {
			breaks = breaks || w.caught[tc.name] != ""
		}
		if !breaks {
			t.Errorf("nothing shows that the case %q can fail", tc.name)
		}
	}
}
