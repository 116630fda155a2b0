package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// procedure is how a fault is set, held and healed, and what shows its effect.
type procedure struct {
	// silent: the target cannot answer while the fault stands. deposes: the fault ends the
	// term, so a new leader does not mean that it hit the wrong one.
	silent, deposes bool
	// shown, if given, replaces that of the kind. pids are those of the Fault.
	shown Shown
	pids  []int
	// set sets the fault and says in words what it did; it is healed also if set fails.
	// begun is when it began, if not when set was called; 0 with an error: nothing was set.
	set func(ctx context.Context) (what string, begun clock.Instant, err error)
	// hold returns when the fault is to end; nil: after Spec.For and Spec.Until.
	hold func(ctx context.Context, begun clock.Instant) error
	// heal undoes everything; it may be called before anything was set. healed says so in
	// words. nil: there is nothing to undo.
	heal   func(ctx context.Context) error
	healed string
	// felt says what shows so far that the fault had an effect; empty: nothing yet.
	felt func(ctx context.Context, healed bool) string
	// settle, if given, is how long to look for more evidence after it was healed.
	settle func(evidence string) time.Duration
	// hit, if set by set, is the process that was hit instead of the target, and when it
	// stopped.
	hit     *Target
	stopped clock.Instant
}

// Inject injects a fault and returns when it is healed.
func (f *Fleet) Inject(ctx context.Context, s Spec) (Fault, error) {
	k, ok := KindOf(s.Kind)
	if !ok {
		return Fault{Name: s.Kind}, fmt.Errorf("%w: there is no fault %q", ErrCannot, s.Kind)
	}
	s.For = cmp.Or(s.For, cmp.Or(k.lasts, 2)*f.ttl)
	elects := Engine
	if f.raft {
		elects = Peers
	}
	s.From, s.Way = cmp.Or(s.From, elects), cmp.Or(s.Way, Both)
	fault := Fault{Name: k.Name, Target: strings.Join(s.Targets, ",")}
	targets, err := f.targets(ctx, k, s)
	if err != nil {
		return fault, err
	}
	fault.Target, fault.Token, fault.Shown = ids(targets), targets[0].Token, k.Shown
	w, err := k.prepare(f, s, targets)
	if err != nil {
		return fault, err
	}
	if f.found != nil && !k.Named {
		f.found(targets[0])
	}
	return f.run(ctx, s, fault, targets, w)
}

// targets finds whom a fault hits.
func (f *Fleet) targets(ctx context.Context, k Kind, s Spec) ([]Target, error) {
	switch {
	case !k.Named:
		l, err := f.Leader(ctx, 0)
		return []Target{l}, err
	case k.Name == DiskSync || k.Name == DiskFull:
		return f.named([]string{theLedger})
	}
	what, err := f.resolveRoles(ctx, s.Targets, s.Nth)
	if err != nil {
		return nil, err
	}
	return f.named(what)
}

func (f *Fleet) run(ctx context.Context, s Spec, fault Fault, targets []Target, w *procedure) (_ Fault, err error) {
	target := targets[0]
	fault.Begun, fault.Shown, fault.PIDs = f.host.Now(), cmp.Or(w.shown, fault.Shown), w.pids
	stood := false
	var once sync.Once
	heal := func() {
		once.Do(func() {
			hctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), healTime, errSlow)
			defer cancel()
			if stood {
				fault.Held = f.host.Now()
			}
			var herr error
			if w.heal != nil {
				herr = w.heal(hctx)
			}
			fault.Healed = f.host.Now()
			switch {
			case herr != nil && f.fleetEnded():
				err = errors.Join(err, fmt.Errorf("%w: it has ended meanwhile, and %s on %s with it", ErrFleet, fault.Name, fault.Target))
			case herr != nil:
				err = errors.Join(err, fmt.Errorf("%w: %s on %s: %w", ErrNotHealed, fault.Name, fault.Target, herr))
			case stood && w.healed != "":
				f.say(fault.Healed, "healed: %s %s", fault.Target, w.healed)
			}
		})
	}
	defer heal() // also when something below panics
	what, begun, err := w.set(ctx)
	if begun != 0 || err != nil {
		fault.Begun = begun
	}
	if w.hit != nil {
		fault.Target, fault.PIDs, fault.Stopped = w.hit.ID, []int{w.hit.PID}, w.stopped
	}
	if err != nil {
		if c := cause(ctx); c != nil {
			err = fmt.Errorf("%w (%w)", c, err)
		}
		heal()
		return fault, err
	}
	stood = true
	fault.Set = f.host.Now()
	if fault.Token == 0 {
		f.say(fault.Begun, "%s: %s", fault.Target, what)
	} else {
		f.say(fault.Begun, "%s (token %d): %s", fault.Target, fault.Token, what)
		if word, changed := f.overtaken(ctx, target, w); changed && f.host.Now().Sub(fault.Begun) < f.tooSoonTime() {
			heal()
			return fault, errors.Join(fmt.Errorf("%w: it was meant for %s with token %d, but %s", ErrChanged, target.ID, target.Token, word), err)
		}
	}
	watch := f.watch(ctx, w)
	defer watch.stop()
	hold := w.hold
	if hold == nil {
		hold = f.lasting(s, target)
	}
	err = hold(ctx, fault.Begun)
	fault.Evidence = watch.stop()
	heal()
	// A node may notice what it missed only when one of its calls has timed out.
	for latest := fault.Healed.Add(f.noticeTime()); ; pause(ctx, pollEvery) {
		if e := w.felt(ctx, true); e != "" {
			fault.Evidence = e
		}
		if c := cause(ctx); c != nil {
			return fault, errors.Join(err, c)
		}
		end := latest
		if fault.Evidence != "" {
			end = fault.Healed
			if w.settle != nil {
				end = end.Add(w.settle(fault.Evidence))
			}
		}
		if f.host.Now() >= end {
			break
		}
	}
	if fault.Evidence == "" {
		return fault, errors.Join(err, fmt.Errorf("%w: %s on %s left no trace in %v", ErrNoBite, fault.Name, fault.Target, fault.Healed.Sub(fault.Begun).Round(time.Millisecond)))
	}
	f.say(f.host.Now(), "it bit: %s", fault.Evidence)
	return fault, err
}

// overtaken says who has led since, if that means that the fault hit the wrong term.
func (f *Fleet) overtaken(ctx context.Context, target Target, w *procedure) (string, bool) {
	if w.deposes {
		return "", false
	}
	return f.deposed(ctx, target, w.silent)
}

// lasting holds a fault for Spec.For and until Spec.Until has returned.
func (f *Fleet) lasting(s Spec, target Target) func(context.Context, clock.Instant) error {
	return func(ctx context.Context, begun clock.Instant) error {
		if s.Until != nil {
			if err := s.Until(ctx, target); err != nil {
				return err
			}
		}
		pause(ctx, begun.Add(s.For).Sub(f.host.Now()))
		return nil
	}
}

// tooSoonTime is how long after a fault a new leader cannot be its effect.
func (f *Fleet) tooSoonTime() time.Duration {
	const raft = time.Second // the least that followers wait
	return min(f.ttl, raft) / 2
}

// noticeTime is how long after it was healed a fault may be noticed: the longest call of a
// node, and some time to look.
func (f *Fleet) noticeTime() time.Duration {
	const call = 5 * time.Second // at Raft, whatever the TTL
	if f.raft {
		return call + time.Second
	}
	return min(f.ttl, call) + time.Second
}

// watcher looks for evidence while a fault stands.
type watcher struct {
	cancel context.CancelFunc
	ended  chan struct{}
	last   string
}

func (f *Fleet) watch(ctx context.Context, w *procedure) *watcher {
	ctx, cancel := context.WithCancel(ctx)
	v := &watcher{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(v.ended)
		for {
			if e := w.felt(ctx, false); e != "" {
				v.last = e
			}
			if !pause(ctx, 2*pollEvery) {
				return
			}
		}
	}()
	return v
}

func (v *watcher) stop() string {
	v.cancel()
	<-v.ended
	return v.last
}

// Churn injects KillLeader every Spec.Every for Spec.For, and returns the faults that had
// an effect and the errors of the others. It ends early when ctx does or no node comes to
// lead.
func (f *Fleet) Churn(ctx context.Context, s Spec) ([]Fault, error) {
	s.Every, s.For = cmp.Or(s.Every, 5*time.Second), cmp.Or(s.For, time.Minute)
	var faults []Fault
	var wrong error
	failed := 0
	begun := f.host.Now()
	for at := begun; at.Sub(begun) < s.For; {
		fault, err := f.Inject(ctx, Spec{Kind: KillLeader})
		if stopped := cause(ctx); stopped != nil && fault.Evidence == "" {
			return faults, errors.Join(wrong, stopped)
		}
		if s.Each != nil {
			s.Each(fault, err)
		}
		switch {
		case errors.Is(err, ErrChanged): // the next is as good
		case errors.Is(err, ErrNoLeader), errors.Is(err, ErrFleet):
			return faults, errors.Join(wrong, err)
		case err != nil:
			const most = 10
			failed++
			if wrong = errors.Join(wrong, err); len(faults) == 0 || errors.Is(err, ErrNotHealed) || failed > most {
				return faults, wrong
			}
		default:
			faults = append(faults, fault)
		}
		at = max(at.Add(s.Every), f.host.Now())
		if !pause(ctx, at.Sub(f.host.Now())) {
			return faults, errors.Join(wrong, cause(ctx))
		}
	}
	return faults, wrong
}

// joinWords joins what is not empty.
func joinWords(all ...string) string {
	var some []string
	for _, w := range all {
		if w != "" {
			some = append(some, w)
		}
	}
	return strings.Join(some, "; ")
}
