package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
)

// procedure is how a fault is set, held and healed, and what shows its effect.
type procedure struct {
	// silent: the target cannot answer while the fault is in effect. deposes: the fault ends
	// the term, so a new leader does not mean that it hit the wrong one.
	silent, deposes bool
	// shown, if given, replaces that of the kind. pids are those of the Fault.
	shown Shown
	pids  []int
	// set sets the fault and describes it; heal is called also if set fails. begun is when the
	// fault began, if not when set was called; 0 with an error: nothing was set.
	set func(ctx context.Context) (what string, begun clock.Instant, err error)
	// hold returns when the fault is to end; nil: after Spec.For and Spec.Until.
	hold func(ctx context.Context, begun clock.Instant) error
	// heal undoes everything; it may be called before anything was set. healed describes it.
	// nil: there is nothing to undo.
	heal   func(ctx context.Context) error
	healed string
	// felt returns what shows the effect so far; empty: nothing yet.
	felt func(ctx context.Context, healed bool) string
	// settle is how long to look for more evidence after the healing; nil: not at all.
	settle func(evidence string) time.Duration
	// hit, if set by set, is the process that was hit instead of the target, and when it
	// stopped.
	hit     *inspect.Target
	stopped clock.Instant
}

// Inject injects a fault and returns when it is healed.
func (f *Fleet) Inject(ctx context.Context, s Spec) (Fault, error) {
	k, ok := KindOf(s.Kind)
	if !ok {
		return Fault{Name: s.Kind}, fmt.Errorf("%w: unknown fault %q", inspect.ErrCannot, s.Kind)
	}
	s.For = cmp.Or(s.For, cmp.Or(k.lasts, 2)*f.TTL)
	elects := Engine
	if f.Raft {
		elects = Peers
	}
	s.From, s.Way = cmp.Or(s.From, elects), cmp.Or(s.Way, Both)
	fault := Fault{Name: k.Name, Target: strings.Join(s.Targets, ","), Shown: k.Shown}
	targets, err := f.targets(ctx, k, s)
	if err != nil {
		return fault, err
	}
	fault.Target, fault.Token = inspect.IDs(targets), targets[0].Token
	p, err := k.prepare(f, s, targets)
	if err != nil {
		return fault, err
	}
	if f.found != nil && !k.Named {
		f.found(targets[0])
	}
	return f.run(ctx, s, fault, targets[0], p)
}

func (f *Fleet) run(ctx context.Context, s Spec, fault Fault, target inspect.Target, p *procedure) (_ Fault, err error) {
	fault.Begun, fault.Shown, fault.PIDs = now(), cmp.Or(p.shown, fault.Shown), p.pids
	set := false
	heal := sync.OnceFunc(func() {
		hctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), healTime, errSlow)
		defer cancel()
		if set {
			fault.Held = now()
		}
		var herr error
		if p.heal != nil {
			herr = p.heal(hctx)
		}
		fault.Healed = now()
		switch {
		case herr != nil && f.Ended():
			err = errors.Join(err, fmt.Errorf("%w: the fleet ended during %s on %s", inspect.ErrFleet, fault.Name, fault.Target))
		case herr != nil:
			err = errors.Join(err, fmt.Errorf("%w: %s on %s: %w", ErrNotHealed, fault.Name, fault.Target, herr))
		case set && p.healed != "":
			f.say(fault.Healed, "healed: %s %s", fault.Target, p.healed)
		}
	})
	defer heal() // also when something below panics
	what, begun, err := p.set(ctx)
	if begun != 0 || err != nil {
		fault.Begun = begun
	}
	if p.hit != nil {
		fault.Target, fault.PIDs, fault.Stopped = p.hit.ID, []int{p.hit.PID}, p.stopped
	}
	if err != nil {
		if c := context.Cause(ctx); c != nil {
			err = fmt.Errorf("%w (%w)", c, err)
		}
		heal()
		return fault, err
	}
	set = true
	fault.Set = now()
	if fault.Token == 0 {
		f.say(fault.Begun, "%s: %s", fault.Target, what)
	} else {
		f.say(fault.Begun, "%s (token %d): %s", fault.Target, fault.Token, what)
	}
	if fault.Token > 0 && !p.deposes {
		if next := f.Deposed(ctx, target, p.silent); next != "" && now().Sub(fault.Begun) < f.tooSoonTime() {
			heal()
			return fault, errors.Join(fmt.Errorf("%w: it was meant for %s with token %d, but %s", inspect.ErrChanged, target.ID, target.Token, next), err)
		}
	}
	evidence := f.watch(ctx, p)
	defer evidence()
	hold := p.hold
	if hold == nil {
		hold = f.lasting(s, target)
	}
	err = hold(ctx, fault.Begun)
	fault.Evidence = evidence()
	heal()
	// A node may notice what it missed only when one of its calls has timed out.
	for latest := fault.Healed.Add(f.noticeTime()); ; inspect.Sleep(ctx, inspect.PollEvery) {
		fault.Evidence = cmp.Or(p.felt(ctx, true), fault.Evidence)
		if c := context.Cause(ctx); c != nil {
			return fault, errors.Join(err, c)
		}
		end := latest
		if fault.Evidence != "" {
			end = fault.Healed
			if p.settle != nil {
				end = end.Add(p.settle(fault.Evidence))
			}
		}
		if now() >= end {
			break
		}
	}
	if fault.Evidence == "" {
		return fault, errors.Join(err, fmt.Errorf("%w: nothing shows an effect of %s on %s in %v", ErrNoEffect, fault.Name, fault.Target, fault.Healed.Sub(fault.Begun).Round(time.Millisecond)))
	}
	f.say(now(), "effect: %s", fault.Evidence)
	return fault, err
}

// lasting holds a fault for Spec.For and until Spec.Until has returned.
func (f *Fleet) lasting(s Spec, target inspect.Target) func(context.Context, clock.Instant) error {
	return func(ctx context.Context, begun clock.Instant) error {
		if s.Until != nil {
			if err := s.Until(ctx, target); err != nil {
				return err
			}
		}
		inspect.Sleep(ctx, begun.Add(s.For).Sub(now()))
		return nil
	}
}

// tooSoonTime is how long after a fault a new leader cannot be its effect.
func (f *Fleet) tooSoonTime() time.Duration {
	const raft = time.Second // the least that followers wait
	return min(f.TTL, raft) / 2
}

// noticeTime is how long after the healing a node may notice a fault: its longest call, and
// some time to look.
func (f *Fleet) noticeTime() time.Duration {
	const call = 5 * time.Second // with Raft, whatever the TTL
	if f.Raft {
		return call + time.Second
	}
	return min(f.TTL, call) + time.Second
}

// watch looks for evidence while a fault is in effect. stop ends that and returns it.
func (f *Fleet) watch(ctx context.Context, p *procedure) (stop func() string) {
	ctx, cancel := context.WithCancel(ctx)
	found := make(chan string, 1)
	go func() {
		last := ""
		for ok := true; ok; ok = inspect.Sleep(ctx, 2*inspect.PollEvery) {
			last = cmp.Or(p.felt(ctx, false), last)
		}
		found <- last
	}()
	return sync.OnceValue(func() string {
		cancel()
		return <-found
	})
}

// Churn injects KillLeader every Spec.Every for Spec.For. It returns the faults that had an
// effect and the errors of the others. It ends early when ctx does or when nobody leads.
func (f *Fleet) Churn(ctx context.Context, s Spec) (faults []Fault, wrong error) {
	s.Every, s.For = cmp.Or(s.Every, 5*time.Second), cmp.Or(s.For, time.Minute)
	failed := 0
	begun := now()
	for at := begun; at.Sub(begun) < s.For; {
		fault, err := f.Inject(ctx, Spec{Kind: KillLeader})
		if stopped := context.Cause(ctx); stopped != nil && fault.Evidence == "" {
			return faults, errors.Join(wrong, stopped)
		}
		if s.Each != nil {
			s.Each(fault, err)
		}
		switch {
		case err == nil:
			faults = append(faults, fault)
		case errors.Is(err, inspect.ErrChanged): // the next is as good
		default:
			const most = 10
			failed++
			wrong = errors.Join(wrong, err)
			if len(faults) == 0 || failed > most || errors.Is(err, ErrNotHealed) || errors.Is(err, inspect.ErrNoLeader) || errors.Is(err, inspect.ErrFleet) {
				return faults, wrong
			}
		}
		at = max(at.Add(s.Every), now())
		if !inspect.Sleep(ctx, at.Sub(now())) {
			return faults, errors.Join(wrong, context.Cause(ctx))
		}
	}
	return faults, wrong
}

// joinWords joins what is not empty.
func joinWords(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "; ")
}
