package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// Until waits for something while a fault stands.
type Until func(ctx context.Context, target Leader) error

// work is what a fault consists of.
type work struct {
	name string
	// silent: the target cannot answer while the fault stands; deposes: it is to be the
	// end of the term, so that a new leader says nothing.
	silent, deposes bool
	// shown and pids are those of the Fault.
	shown Shown
	pids  []int
	// named: the target was named, and who leads does not matter.
	named bool
	// set sets it and says in words what it did; it is healed also if set fails. Begun
	// is when it began, if that is not when set was called; with an error, 0: nothing was
	// set.
	set func(ctx context.Context, target Leader) (what string, begun clock.Instant, err error)
	// hold returns when the fault is to end.
	hold func(ctx context.Context, target Leader, begun clock.Instant) error
	// heal leaves nothing of it. It may be called before anything was set.
	heal func(ctx context.Context) error
	// healed says so in words; empty: there is nothing to undo.
	healed string
	// felt is what shows so far that it bit; empty: nothing yet.
	felt func(ctx context.Context, target Leader, healed bool) string
	// settle, if given, is how long to look for more after it was healed.
	settle func(evidence string) time.Duration
}

// strike finds the leader and does the work to it.
func (f *Fleet) strike(ctx context.Context, w func(Leader) (work, error)) (Fault, error) {
	target, err := f.Leader(ctx, 0)
	if err != nil {
		return Fault{}, err
	}
	job, err := w(target)
	if err != nil {
		return Fault{Name: job.name, Target: target.ID, Token: target.Token}, err
	}
	if f.found != nil {
		f.found(target)
	}
	return f.run(ctx, target, job)
}

func (f *Fleet) run(ctx context.Context, target Leader, w work) (fault Fault, err error) {
	fault = Fault{Name: w.name, Target: target.ID, Token: target.Token, Begun: f.host.Now(), Shown: w.shown, PIDs: w.pids}
	stood := false
	var once sync.Once
	heal := func() {
		once.Do(func() {
			hctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), healTime, errSlow)
			defer cancel()
			if stood {
				fault.Held = f.host.Now()
			}
			herr := w.heal(hctx)
			fault.Healed = f.host.Now()
			if herr != nil && f.over() {
				err = errors.Join(err, fmt.Errorf("%w: it has ended meanwhile, and %s on %s with it", ErrFleet, w.name, target.ID))
				return
			}
			if herr != nil {
				err = errors.Join(err, fmt.Errorf("%w: %s on %s: %w", ErrNotHealed, w.name, target.ID, herr))
				return
			}
			if stood && w.healed != "" {
				f.say(fault.Healed, "healed: %s %s", target.ID, w.healed)
			}
		})
	}
	defer heal() // also when something below panics
	what, begun, err := w.set(ctx, target)
	if begun != 0 || err != nil {
		fault.Begun = begun
	}
	if err != nil {
		if c := cause(ctx); c != nil {
			err = fmt.Errorf("%w (%w)", c, err)
		}
		return fault, err
	}
	stood = true
	fault.Set = f.host.Now()
	if w.named {
		f.say(fault.Begun, "%s: %s", target.ID, what)
	} else {
		f.say(fault.Begun, "%s (token %d): %s", target.ID, target.Token, what)
	}
	if word, changed := f.overtaken(ctx, target, w); changed && f.host.Now().Sub(fault.Begun) < f.soon() {
		return fault, fmt.Errorf("%w: it was meant for %s with token %d, but %s", ErrChanged, target.ID, target.Token, word)
	}
	watch := f.watch(ctx, target, w)
	defer watch.stop()
	err = w.hold(ctx, target, fault.Begun)
	fault.Evidence = watch.stop()
	heal()
	// What was missed may be noticed only when a call of the node has timed out.
	for latest := fault.Healed.Add(f.late()); ; pause(ctx, look) {
		if e := w.felt(ctx, target, true); e != "" {
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
		return fault, errors.Join(err, fmt.Errorf("%w: %s on %s left no trace in %v", ErrNoBite, w.name, target.ID, fault.Healed.Sub(fault.Begun).Round(time.Millisecond)))
	}
	f.say(f.host.Now(), "it bit: %s", fault.Evidence)
	return fault, err
}

// overtaken says who has led since, if that means that the fault hit the wrong term.
func (f *Fleet) overtaken(ctx context.Context, target Leader, w work) (string, bool) {
	if w.named || w.deposes {
		return "", false
	}
	return f.deposed(ctx, target, w.silent)
}

// soon is how long after a fault a new leader cannot be its effect.
func (f *Fleet) soon() time.Duration {
	const raft = time.Second // the least that followers wait
	return min(f.ttl, raft) / 2
}

// late is how long after it was healed a fault may be noticed: the longest call of a
// node, and some time to look.
func (f *Fleet) late() time.Duration {
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

func (f *Fleet) watch(ctx context.Context, target Leader, w work) *watcher {
	ctx, cancel := context.WithCancel(ctx)
	v := &watcher{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(v.ended)
		for {
			if e := w.felt(ctx, target, false); e != "" {
				v.last = e
			}
			if !pause(ctx, 2*look) {
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

// lasting holds a fault for d, and until what the caller waits for has come.
func (f *Fleet) lasting(d time.Duration, until Until) func(context.Context, Leader, clock.Instant) error {
	return func(ctx context.Context, target Leader, begun clock.Instant) error {
		end := begun.Add(d)
		if until != nil {
			if err := until(ctx, target); err != nil {
				return err
			}
		}
		pause(ctx, end.Sub(f.host.Now()))
		return nil
	}
}

// words joins what is not empty.
func words(all ...string) string {
	var some []string
	for _, w := range all {
		if w != "" {
			some = append(some, w)
		}
	}
	return strings.Join(some, "; ")
}
