package trial

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/lab/disturb"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/labapi"
)

// batch is shared by trials that run at the same time on one machine.
type batch struct {
	disturbance *disturb.Disturbance // nil: none
	starting    sync.Mutex
	begin, end  barrier
}

// Together marks trials that run at the same time. While they run DisturbedScript, the
// machine is disturbed; empty: it is not.
func Together(disturbed string, trials ...Trial) []Trial {
	b := &batch{begin: newBarrier(len(trials)), end: newBarrier(len(trials))}
	if disturbed != "" {
		b.disturbance = &disturb.Disturbance{Kind: disturbed}
	}
	for i := range trials {
		trials[i].batch, trials[i].Disturbed = b, disturbed
	}
	return trials
}

// startingFleet makes fleets start one after the other: each looks for free ports.
func (b *batch) startingFleet() (started func()) {
	if b == nil {
		return func() {}
	}
	b.starting.Lock()
	return b.starting.Unlock
}

// barrier is where trials wait for each other.
type barrier struct {
	left *atomic.Int32
	met  chan struct{}
	err  *error
}

func newBarrier(n int) barrier {
	b := barrier{new(atomic.Int32), make(chan struct{}), new(error)}
	b.left.Store(int32(n))
	return b
}

// wait waits until all are here. The last one acts before anybody continues; everybody gets
// its error.
func (b barrier) wait(ctx context.Context, act func() error) error {
	if b.left.Add(-1) == 0 {
		*b.err = act()
		close(b.met)
	}
	select {
	case <-b.met:
		return *b.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Batches groups trials: each alone, or those that run at the same time.
func Batches(trials []Trial) (all [][]Trial) {
	for i, t := range trials {
		if i > 0 && t.batch != nil && t.batch == trials[i-1].batch {
			all[len(all)-1] = append(all[len(all)-1], t)
			continue
		}
		all = append(all, []Trial{t})
	}
	return all
}

var errOther = errors.New("a trial that runs at the same time has failed")

// DoBatch runs trials at the same time. The first one that fails ends the others.
func DoBatch(ctx context.Context, trials []Trial, run func(context.Context, Trial) (Outcome, error)) ([]Outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	outcomes, errs := make([]Outcome, len(trials)), make([]error, len(trials))
	var wait sync.WaitGroup
	for i, t := range trials {
		wait.Go(func() {
			if outcomes[i], errs[i] = run(ctx, t); errs[i] != nil {
				cancel(errOther)
			}
			outcomes[i].Seconds /= float64(len(trials)) // its share
		})
	}
	wait.Wait()
	if b := trials[0].batch; b != nil && b.disturbance != nil {
		b.disturbance.Stop()
	}
	var first error
	for _, err := range errs {
		if err != nil && (first == nil || errors.Is(first, errOther)) {
			first = err
		}
	}
	return outcomes, first
}

// DisturbedScript is the script of a trial on a disturbed machine: no fault is injected.
func DisturbedScript(ctx context.Context, s *Run) error {
	if err := s.AllUp(ctx); err != nil {
		return err
	}
	b, d := s.batch, s.batch.disturbance
	if err := b.begin.wait(ctx, func() error { return d.Start(ctx, s.File.Dir) }); err != nil {
		return err
	}
	s.Say("%s for %v", d.Kind, s.For)
	own, err := s.disturbFleet(ctx, d.Kind)
	if err != nil {
		return err
	}
	if err := b.end.wait(ctx, func() error {
		if d.Stop(); errors.Is(d.Err, disturb.ErrIdle) {
			return fmt.Errorf("%w: %w", ErrNotSeen, d.Err)
		}
		return d.Err
	}); err != nil {
		return err
	}
	evidence := strings.Trim(d.Evidence+"; "+own, "; ")
	s.Say("healed: %s", evidence)
	s.RoundDone()
	return s.Faults.Write(history.Fault{Name: "busy-" + d.Kind, Target: "machine", Begun: d.Begun, Healed: d.Healed, Evidence: evidence, Proof: history.Proof{Kind: history.ProofMeasured}})
}

// disturbFleet is the part of a disturbance that each fleet has for itself. It lasts For.
func (s *Run) disturbFleet(ctx context.Context, kind string) (evidence string, err error) {
	switch kind {
	case disturb.GC:
		return s.collectGarbage(ctx)
	case disturb.Disk:
		pids := []int{s.File.Engine.PID}
		if s.Engine == Raft {
			pids = nil // the nodes are the engine
			for _, n := range s.File.Nodes {
				pids = append(pids, n.PID)
			}
		}
		for _, pid := range pids {
			nice, err := disturb.LowerPriority(pid, 10)
			if err != nil {
				return "", fmt.Errorf("lower the priority of the engine (pid %d): %w", pid, err)
			}
			evidence = fmt.Sprintf("the engine has nice %d", nice)
		}
	}
	return evidence, s.Hold(ctx, s.For)
}

// collectGarbage keeps the garbage collectors of all nodes busy.
func (s *Run) collectGarbage(ctx context.Context) (string, error) {
	const once = 10 * time.Second // short, because a node may be restarted
	ends := now().Add(s.For)
	var mu sync.Mutex
	var sum labapi.Collected
	ran := map[string]bool{}
	var nodes sync.WaitGroup
	for _, n := range s.File.Nodes {
		nodes.Go(func() {
			for left := ends.Sub(now()); left > 0 && ctx.Err() == nil; left = ends.Sub(now()) {
				var got labapi.Collected
				err := s.Chaos.Call(ctx, 3*once, http.MethodPost, n.URL+"/lab/garbage", nil, labapi.Garbage{HeapMB: 16, ForMS: max(1, min(left, once).Milliseconds())}, &got)
				if err != nil {
					_ = s.Hold(ctx, 100*time.Millisecond)
					continue
				}
				mu.Lock()
				sum.Cycles, sum.Stopped = sum.Cycles+got.Cycles, sum.Stopped+got.Stopped
				ran[n.ID] = ran[n.ID] || got.Cycles > 0
				mu.Unlock()
			}
		})
	}
	nodes.Wait()
	for _, n := range s.File.Nodes {
		if ctx.Err() == nil && !ran[n.ID] {
			return "", fmt.Errorf("%w: the garbage collector of %s did not run", ErrNotSeen, n.ID)
		}
	}
	return fmt.Sprintf("%d collections in %d nodes, which stopped them for %v in sum", sum.Cycles, len(s.File.Nodes), time.Duration(sum.Stopped)*time.Microsecond), context.Cause(ctx)
}
