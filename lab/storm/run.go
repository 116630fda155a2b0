package storm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/trial"
)

// The files of a storm beside its history: the plan, and what became of it.
const (
	planFile     = "plan.json"
	injectedFile = "struck.jsonl"
)

// injectedFault is a fault that was injected, or could not be.
type injectedFault struct {
	Step int    `json:"step"`
	Kind string `json:"kind"`
	Aim  string `json:"aim"`
	chaos.Fault
	// HadEffect: the evidence shows the effect. Only such faults count.
	HadEffect bool `json:"bit"`
	// Problem is why the fault could not be set, had no effect, or ended in another way than
	// planned. Unhealed: something of it may be left.
	Problem  string `json:"problem,omitempty"`
	Unhealed bool   `json:"unhealed,omitempty"`
}

// stormRun is a running storm.
type stormRun struct {
	*trial.Run
	begun   clock.Instant
	lasts   time.Duration
	planned int // faults

	mu         sync.Mutex
	out        *json.Encoder
	withEffect int // faults with an effect
	kinds      map[string]bool
	wrong      error // of the record or the history
}

// play plays a plan for a time, heals everything, and waits as long as recovery may take.
// When stop ends, the rest of the plan is skipped.
func play(ctx, stop context.Context, s *trial.Run, plan []step, lasts time.Duration) (err error) {
	w, done, err := newRun(s, plan)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	storming, endStorm := context.WithCancelCause(ctx)
	defer endStorm(nil)
	defer context.AfterFunc(stop, func() { endStorm(context.Cause(stop)) })()
	w.begun, w.lasts = clock.System().Now(), lasts
	for i, st := range plan {
		if clock.System().Now().Sub(w.begun) >= lasts || storming.Err() != nil {
			break
		}
		w.step(storming, i+1, st)
		if i < s.Trial.Rounds {
			s.RoundDone()
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.Say("healing everything")
	var left error
	if err := trial.Await(ctx, "everything healed", func(ctx context.Context) bool {
		left = s.Chaos.Heal(ctx)
		return left == nil
	}); err != nil {
		return errors.Join(err, left)
	}
	bound := s.Trial.Describe().RecoveryBound()
	s.Say("everything is healed; waiting for %v, the longest time that recovery may take", bound)
	return s.Hold(ctx, bound)
}

// newRun writes the plan and opens the record of faults. done closes the record and returns
// the first error of the record or the history.
func newRun(s *trial.Run, plan []step) (w *stormRun, done func() error, err error) {
	dir := filepath.Dir(s.File.Dir)
	data, err := json.MarshalIndent(plan, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, planFile), data, 0o644)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("write the plan: %w", err)
	}
	f, err := os.Create(filepath.Join(dir, injectedFile))
	if err != nil {
		return nil, nil, fmt.Errorf("create the record of faults: %w", err)
	}
	w = &stormRun{Run: s, kinds: map[string]bool{}, out: json.NewEncoder(f)}
	for _, st := range plan[:min(s.Trial.Rounds, len(plan))] {
		w.planned += len(st.Faults)
	}
	return w, func() error { return errors.Join(w.wrong, f.Close()) }, nil
}

// step waits for a leader and plays one step.
func (w *stormRun) step(ctx context.Context, n int, st step) {
	if l, err := w.Chaos.Leader(ctx, 0); err != nil {
		w.Say("step %d: %v", n, err)
	} else if w.Hold(ctx, st.Calm) == nil {
		w.Say("%s; %s leads with token %d: %s", w.progress(), l.ID, l.Token, st)
	}
	if ctx.Err() != nil {
		return
	}
	var together sync.WaitGroup
	defer together.Wait()
	for i, b := range st.Faults {
		b.step = n
		if len(st.Faults) > 1 && !st.After {
			together.Go(func() { w.inject(ctx, b) })
			continue
		}
		if i > 0 && w.Hold(ctx, st.Delay) != nil {
			return
		}
		w.inject(ctx, b)
	}
}

// progress reports how far the storm is: first by the plan, then by its rate.
func (w *stormRun) progress() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	about := w.planned
	const few = 10
	if w.withEffect > few {
		about = int(float64(w.withEffect) * float64(w.lasts) / float64(clock.System().Now().Sub(w.begun)))
	}
	return fmt.Sprintf("fault %d of about %d, %d kinds so far", w.withEffect+1, max(about, w.withEffect+1), len(w.kinds))
}

// inject injects a planned fault, again if its target went away meanwhile, and records it.
func (w *stormRun) inject(ctx context.Context, b plannedFault) {
	const tries = 3
	if b.Kind == churnKind {
		spec := chaos.Spec{Every: 200 * time.Millisecond, For: b.For, Each: func(f chaos.Fault, err error) { w.record(b, f, err) }}
		if _, err := w.Chaos.Churn(ctx, spec); err != nil && ctx.Err() == nil {
			w.Say("step %d, churn: %v", b.step, err)
		}
		return
	}
	for try := 1; try <= tries && ctx.Err() == nil; try++ {
		f, err := w.injectOnce(ctx, b)
		if f.Begun == 0 && ctx.Err() != nil {
			return // stopped before it began
		}
		w.record(b, f, err)
		if err == nil || final(err) {
			return
		}
	}
}

// injectOnce injects a planned fault and returns when it is over.
func (w *stormRun) injectOnce(ctx context.Context, b plannedFault) (chaos.Fault, error) {
	spec := b.Spec
	if slices.Contains(spec.Targets, inspect.Quorum) {
		if err := w.AllUp(ctx); err != nil {
			return chaos.Fault{}, err
		}
	}
	if b.Kind != "flap" { // the kill that makes the leader change is a fault of its own
		spec.Each = func(f chaos.Fault, err error) {
			w.record(plannedFault{Kind: chaos.KillLeader, Aim: b.Aim, step: b.step}, f, err)
		}
	}
	if b.Sealed {
		spec.Until = func(ctx context.Context, at inspect.Target) error {
			// The wait is bounded because other faults may be in effect.
			const bound = 20 * time.Second
			ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("%w within %v: a seal above token %d", trial.ErrNotSeen, bound, at.Token))
			defer cancel()
			above := at.Token
			if spec.At != "" { // the target may have sealed the ledger already
				r, err := w.Ledger.Resource(ctx, trial.Group)
				if err != nil {
					return err
				}
				above = max(above, r.Token)
			}
			return trial.Await(ctx, "a seal", func(ctx context.Context) bool {
				r, err := w.Ledger.Resource(ctx, trial.Group)
				return err == nil && r.Token > above
			})
		}
	}
	return w.Chaos.Inject(ctx, spec)
}

// final reports whether trying again is useless. Any other error means that the target went
// away while the fault was being set.
func final(err error) bool {
	return slices.ContainsFunc([]error{chaos.ErrNoEffect, inspect.ErrCannot, inspect.ErrNoLeader, inspect.ErrFleet, chaos.ErrNotHealed, trial.ErrNotSeen}, func(e error) bool { return errors.Is(err, e) })
}

// record writes a fault to the storm's record, and to the history if it was in effect.
func (w *stormRun) record(b plannedFault, f chaos.Fault, err error) {
	missed := errors.Is(err, chaos.ErrNoEffect) || errors.Is(err, inspect.ErrChanged)
	r := injectedFault{Step: b.step, Kind: b.Kind, Aim: b.Aim, Fault: f, HadEffect: f.Begun > 0 && f.Evidence != "" && !missed, Unhealed: errors.Is(err, chaos.ErrNotHealed)}
	if err != nil {
		r.Problem = err.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.HadEffect {
		w.withEffect++
		w.kinds[b.Kind] = true
		w.Say("%s of %s had an effect: %s", b.Kind, f.Target, f.Evidence)
	} else {
		w.Say("%s of %s does not count: %s", b.Kind, f.Target, r.Problem)
	}
	w.wrong = errors.Join(w.wrong, w.out.Encode(r))
	for _, x := range r.inHistory() {
		w.wrong = errors.Join(w.wrong, w.Faults.Write(x))
	}
}

// inHistory returns the lines of a fault in the history. One that does not count is there
// too, because it may have been in effect for a moment, which can excuse something. A kill
// that does not count killed nobody.
func (r injectedFault) inHistory() []history.Fault {
	if r.Begun == 0 {
		return nil
	}
	f := trial.InHistory(r.Fault, classOf(r.Kind))
	f.Name = r.Kind
	killed := f.Class == history.ClassKill
	switch {
	case !r.HadEffect && killed:
		return nil
	case !r.HadEffect:
		f.Missed = cmp.Or(r.Problem, "it left no evidence")
	case killed:
		f.Healed, f.Set, f.Held = f.Begun, 0, 0 // it excuses nothing that the node does after its restart
	}
	all := []history.Fault{f}
	part := func(name, class string, change func(*history.Fault)) {
		p := f
		p.Name, p.PartOf, p.Class = f.Name+name, f.Name, class
		change(&p)
		all = append(all, p)
	}
	if r.HadEffect && r.Stopped > 0 && r.Stopped < r.Begun { // until it was killed it could not see its term end
		part(": stood still", history.ClassPause, func(p *history.Fault) {
			p.Begun, p.Healed, p.Proof.Kind = r.Stopped, r.Begun, history.ProofStopped
		})
	}
	if r.HadEffect && r.Kind == "stop-leader" { // a process that does not stop in time does not record the end of its term
		part(": gone", history.ClassKill, func(p *history.Fault) { p.Begun, p.Set, p.Held = f.Healed, 0, 0 })
	}
	if f.Class == history.ClassQuorum && r.Name == chaos.Partition { // the engine ran, and no node reached it
		all[0].Proof.Kind = history.ProofFelt
	} else if f.Class == history.ClassQuorum {
		for id := range strings.SplitSeq(r.Target, ",") {
			part(" by", history.ClassPause, func(p *history.Fault) { p.Target = id })
		}
	}
	return all
}
