package experiment

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
	"github.com/tenurehq/tenure/lab/history"
)

// The files of a storm beside its history: what was planned, and what became of it.
const (
	planFile     = "plan.json"
	injectedFile = "struck.jsonl"
)

// injectedFault is a fault that was set, or was to be.
type injectedFault struct {
	Step int    `json:"step"`
	Kind string `json:"kind"`
	Aim  string `json:"aim"`
	chaos.Fault
	// Bit: the evidence shows it. Only these count.
	Bit bool `json:"bit"`
	// Problem is why it could not be set, did not bite, or ended in another way than it
	// was to. Unhealed: something of it may be left.
	Problem  string `json:"problem,omitempty"`
	Unhealed bool   `json:"unhealed,omitempty"`
}

// stormRun is a storm at work.
type stormRun struct {
	*trialRun
	begun clock.Instant
	lasts time.Duration
	about int // how many faults are planned

	mu        sync.Mutex
	out       *json.Encoder
	effective int // faults that had an effect
	kinds     map[string]bool
	wrong     error // of the history
}

// storm plays a plan for a time, heals everything, and waits as long as recovery may
// take. When stop ends, the rest of the plan is left out.
func (s *trialRun) storm(ctx, stop context.Context, plan []step, lasts time.Duration) (err error) {
	w, done, err := s.stormRun(plan)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	storming, endStorm := context.WithCancelCause(ctx)
	defer endStorm(nil)
	defer context.AfterFunc(stop, func() { endStorm(context.Cause(stop)) })()
	w.begun, w.lasts = now(), lasts
	for i, st := range plan {
		if now().Sub(w.begun) >= lasts || storming.Err() != nil {
			break
		}
		w.step(storming, i+1, st)
		if i < s.trial.Rounds {
			s.round()
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return w.clear(ctx)
}

// stormRun writes the plan down and opens the record. Done says whether everything is in
// it and in the history.
func (s *trialRun) stormRun(plan []step) (w *stormRun, done func() error, err error) {
	dir := filepath.Dir(s.file.Dir)
	if err := writeJSON(filepath.Join(dir, planFile), plan, nil); err != nil {
		return nil, nil, fmt.Errorf("the plan cannot be kept: %w", err)
	}
	f, err := os.Create(filepath.Join(dir, injectedFile))
	if err != nil {
		return nil, nil, fmt.Errorf("the record of faults cannot be kept: %w", err)
	}
	w = &stormRun{trialRun: s, kinds: map[string]bool{}, out: json.NewEncoder(f)}
	for _, st := range plan[:min(s.trial.Rounds, len(plan))] {
		w.about += len(st.Faults)
	}
	return w, func() error { return errors.Join(w.wrong, f.Close()) }, nil
}

// clear ends a storm: nothing is broken any more, and the fleet has the time that it may
// take to recover.
func (w *stormRun) clear(ctx context.Context) error {
	w.say("healing everything")
	var left error
	err := await(ctx, "everything healed", func(ctx context.Context) bool {
		left = w.chaos.Heal(ctx)
		return left == nil
	})
	if err != nil {
		return errors.Join(err, left)
	}
	bound := w.trial.describe(Experiment{}, Full).RecoveryBound()
	w.say("all is healed; waiting for %v, the longest that recovery may take", bound)
	return w.hold(ctx, bound)
}

// step waits for somebody to lead and plays one step.
func (w *stormRun) step(ctx context.Context, n int, st step) {
	if l, err := w.chaos.Leader(ctx, 0); err != nil {
		w.say("step %d: %v", n, err)
	} else if w.hold(ctx, st.Calm) == nil {
		w.say("%s; %s leads with token %d: %s", w.progress(), l.ID, l.Token, st)
	}
	if ctx.Err() != nil {
		return
	}
	if len(st.Faults) > 1 && !st.After {
		var both sync.WaitGroup
		for _, b := range st.Faults {
			both.Go(func() { w.injectPlanned(ctx, n, b) })
		}
		both.Wait()
		return
	}
	for i, b := range st.Faults {
		if i > 0 && w.hold(ctx, st.Delay) != nil {
			return
		}
		w.injectPlanned(ctx, n, b)
	}
}

// progress is how far the storm has come: at first by the plan, then by its pace.
func (w *stormRun) progress() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	about := w.about
	const few = 10
	if w.effective > few {
		about = int(float64(w.effective) * float64(w.lasts) / float64(now().Sub(w.begun)))
	}
	return fmt.Sprintf("fault %d of about %d, %d kinds so far", w.effective+1, max(about, w.effective+1), len(w.kinds))
}

// injectPlanned injects a planned fault, again if its target went away meanwhile, and
// records it.
func (w *stormRun) injectPlanned(ctx context.Context, n int, b plannedFault) {
	const tries = 3
	b.step = n
	if b.Kind == churnKind {
		spec := chaos.Spec{Every: 200 * time.Millisecond, For: b.For, Each: func(f chaos.Fault, err error) { w.record(b, f, err) }}
		if _, err := w.chaos.Churn(ctx, spec); err != nil && ctx.Err() == nil {
			w.say("step %d, churn: %v", n, err)
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
	if slices.Contains(spec.Targets, chaos.Quorum) {
		if err := w.all(ctx); err != nil {
			return chaos.Fault{}, err
		}
	}
	// The kill that makes the leader change is a fault of its own.
	spec.Each = func(f chaos.Fault, err error) {
		w.record(plannedFault{Kind: chaos.KillLeader, Aim: b.Aim, step: b.step}, f, err)
	}
	if b.Kind == "flap" {
		spec.Each = nil
	}
	if b.Sealed {
		spec.Until = func(ctx context.Context, at chaos.Target) error {
			// Other faults may stand meanwhile: the wait is bounded.
			const bound = 20 * time.Second
			ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("%w within %v: a seal above token %d", ErrNotSeen, bound, at.Token))
			defer cancel()
			above := at.Token
			if spec.At != "" { // whoever has sealed has a mark of its own there already
				r, err := w.ledger.Resource(ctx, group)
				if err != nil {
					return err
				}
				above = max(above, r.Token)
			}
			return await(ctx, "a seal", func(ctx context.Context) bool {
				r, err := w.ledger.Resource(ctx, group)
				return err == nil && r.Token > above
			})
		}
	}
	return w.chaos.Inject(ctx, spec)
}

// final: to try once more would be no use, or the fault was set. Any other error means
// that the target went away while it was being set, as in a storm it does.
func final(err error) bool {
	return slices.ContainsFunc([]error{chaos.ErrNoEffect, chaos.ErrCannot, chaos.ErrNoLeader, chaos.ErrFleet, chaos.ErrNotHealed, ErrNotSeen}, func(e error) bool { return errors.Is(err, e) })
}

// record writes a fault to the storm's record, and to the history if it stood at all.
func (w *stormRun) record(b plannedFault, f chaos.Fault, err error) {
	missed := errors.Is(err, chaos.ErrNoEffect) || errors.Is(err, chaos.ErrChanged)
	r := injectedFault{Step: b.step, Kind: b.Kind, Aim: b.Aim, Fault: f, Bit: f.Begun > 0 && f.Evidence != "" && !missed, Unhealed: errors.Is(err, chaos.ErrNotHealed)}
	if err != nil {
		r.Problem = err.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Bit {
		w.effective++
		w.kinds[b.Kind] = true
		w.say("it bit: %s of %s: %s", b.Kind, f.Target, f.Evidence)
	} else {
		w.say("it does not count: %s of %s: %s", b.Kind, f.Target, r.Problem)
	}
	w.wrong = errors.Join(w.wrong, w.out.Encode(r))
	for _, x := range r.inHistory() {
		w.wrong = errors.Join(w.wrong, w.faults.Write(x))
	}
}

// inHistory returns the lines of a fault in the history. One that does not count is there
// too: it may have stood for a moment, which can excuse something. A kill that does not
// count was not made.
func (r injectedFault) inHistory() []history.Fault {
	if r.Begun == 0 {
		return nil
	}
	f := inHistory(r.Fault, classOf(r.Kind))
	f.Name = r.Kind
	switch {
	case !r.Bit && f.Class == history.ClassKill:
		return nil // nobody was killed
	case !r.Bit:
		f.Missed = cmp.Or(r.Problem, "it left no evidence")
	case f.Class == history.ClassKill:
		f.Healed, f.Set, f.Held = f.Begun, 0, 0 // what the node does when it is started again is not held against it
	}
	all := []history.Fault{f}
	if r.Bit && r.Stopped > 0 && r.Stopped < r.Begun {
		// Until it was killed it stood still, and could not see its term end.
		part := f
		part.Name, part.PartOf, part.Class, part.Begun, part.Healed = f.Name+": stood still", f.Name, history.ClassPause, r.Stopped, r.Begun
		part.Proof.Kind = history.ProofStopped
		all = append(all, part)
	}
	if r.Bit && r.Kind == "stop-leader" {
		// A process that does not stop in time ends without a word about its term.
		end := f
		end.Name, end.PartOf, end.Class, end.Begun, end.Set, end.Held = f.Name+": gone", f.Name, history.ClassKill, f.Healed, 0, 0
		all = append(all, end)
	}
	if f.Class == history.ClassQuorum {
		for id := range strings.SplitSeq(r.Target, ",") {
			part := f
			part.Name, part.PartOf, part.Class, part.Target = f.Name+" by", f.Name, history.ClassPause, id
			all = append(all, part)
		}
	}
	return all
}
