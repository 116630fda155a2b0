package trial

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/reference/api"
)

// batch is shared by trials that run at the same time on one machine.
type batch struct {
	disturbance *disturbance // of the machine; nil: none
	starting    sync.Mutex
	begin, end  barrier
}

// Together marks trials that run at the same time. While they run DisturbedScript, the
// machine is disturbed; empty: it is not.
func Together(disturbed string, trials ...Trial) []Trial {
	b := &batch{begin: newBarrier(len(trials)), end: newBarrier(len(trials))}
	if disturbed != "" {
		b.disturbance = &disturbance{kind: disturbed}
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
		b.disturbance.stop()
	}
	var first error
	for _, err := range errs {
		if err != nil && (first == nil || errors.Is(first, errOther)) {
			first = err
		}
	}
	return outcomes, first
}

// The disturbances of a machine.
const (
	BusyCPU  = "CPU"     // processes that compute, four per core
	BusyGC   = "GC"      // a garbage collector in every node that never stops
	BusyDisk = "starved" // an engine of low priority beside processes that compute and sync the disk
)

const (
	burnersPerCore = 4
	syncers        = 2
	syncBytes      = 256 << 10
	garbageHeapMB  = 16
	lowered        = 10 // by how much the nice value of a starved engine is raised
)

// disturbance takes resources from fleets. Nobody crashes: a change of leader while it lasts
// is a false failover.
type disturbance struct {
	kind          string
	begun, healed clock.Instant
	cancel        context.CancelFunc
	burning       []*child.Process
	writing       sync.WaitGroup

	mu       sync.Mutex
	syncs    int
	slowest  time.Duration
	wrong    error
	evidence string
}

// start starts the processes and writers; dir is a folder on the disk that they sync.
func (d *disturbance) start(ctx context.Context, dir string) error {
	d.begun = now()
	ctx, d.cancel = context.WithCancel(ctx)
	if d.kind == BusyGC {
		return nil // the nodes do it
	}
	for range burnersPerCore * runtime.NumCPU() {
		cmd := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		child.DieWithParent(cmd)
		p, err := child.Start(cmd, nil)
		if err != nil {
			return fmt.Errorf("start a process that computes: %w", err)
		}
		d.burning = append(d.burning, p)
	}
	if d.kind == BusyDisk {
		for i := range syncers {
			d.writing.Go(func() {
				err := d.sync(ctx, filepath.Join(dir, fmt.Sprint("neighbour-", i)))
				d.mu.Lock()
				d.wrong = errors.Join(d.wrong, err)
				d.mu.Unlock()
			})
		}
	}
	return nil
}

// sync writes a file again and again, and syncs each write.
func (d *disturbance) sync(ctx context.Context, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(path) }()
	part := make([]byte, syncBytes)
	for i := int64(0); ctx.Err() == nil; i++ {
		const parts = 64
		began := now()
		_, err := f.WriteAt(part, i%parts*syncBytes)
		if err := errors.Join(err, f.Sync()); err != nil {
			return errors.Join(err, f.Close())
		}
		d.mu.Lock()
		d.syncs++
		d.slowest = max(d.slowest, now().Sub(began))
		d.mu.Unlock()
	}
	return f.Close()
}

// stop ends the disturbance and notes its evidence. It may be called again.
func (d *disturbance) stop() {
	if d.cancel == nil || d.healed != 0 {
		return
	}
	d.cancel()
	var cpu time.Duration
	for _, p := range d.burning {
		<-p.Exited
		cpu += p.Cmd.ProcessState.UserTime()
	}
	d.writing.Wait()
	d.healed = now()
	var words []string
	lasted := d.healed.Sub(d.begun)
	if len(d.burning) > 0 {
		words = append(words, fmt.Sprintf("%d neighbours had %.1f s of CPU in %.1f s on %d cores", len(d.burning), cpu.Seconds(), lasted.Seconds(), runtime.NumCPU()))
		const soon = 5 * time.Second // they have to be started first
		if least := lasted * time.Duration(runtime.NumCPU()) / 10; lasted > soon && cpu < least {
			d.wrong = errors.Join(d.wrong, fmt.Errorf("%w: the neighbours had %v of CPU in %v, less than %v", ErrNotSeen, cpu, lasted, least))
		}
	}
	if d.syncs > 0 {
		words = append(words, fmt.Sprintf("%d synced writes of %d KiB, the slowest %v", d.syncs, syncBytes>>10, d.slowest.Round(time.Millisecond)))
	} else if d.kind == BusyDisk {
		d.wrong = errors.Join(d.wrong, fmt.Errorf("%w: the neighbours synced nothing", ErrNotSeen))
	}
	d.evidence = strings.Join(words, "; ")
}

// DisturbedScript is the script of a trial on a disturbed machine: no fault is injected.
func DisturbedScript(ctx context.Context, s *Run) error {
	if err := s.AllUp(ctx); err != nil {
		return err
	}
	b, d := s.batch, s.batch.disturbance
	if err := b.begin.wait(ctx, func() error { return d.start(ctx, s.File.Dir) }); err != nil {
		return err
	}
	s.Say("%s for %v", d.kind, s.For)
	own, err := s.disturbFleet(ctx, d.kind)
	if err != nil {
		return err
	}
	if err := b.end.wait(ctx, func() error { d.stop(); return d.wrong }); err != nil {
		return err
	}
	evidence := strings.Trim(d.evidence+"; "+own, "; ")
	s.Say("healed: %s", evidence)
	s.RoundDone()
	return s.Faults.Write(check.Fault{Name: "busy-" + d.kind, Target: "machine", Begun: d.begun, Healed: d.healed, Evidence: evidence, Proof: check.Proof{Kind: check.ProofMeasured}})
}

// disturbFleet is the part of a disturbance that each fleet has for itself. It lasts For.
func (s *Run) disturbFleet(ctx context.Context, kind string) (evidence string, err error) {
	switch kind {
	case BusyGC:
		return s.collectGarbage(ctx)
	case BusyDisk:
		pids := []int{s.File.Engine.PID}
		if s.Engine == Raft {
			pids = nil // the nodes are the engine
			for _, n := range s.File.Nodes {
				pids = append(pids, n.PID)
			}
		}
		for _, pid := range pids {
			nice, err := lowerPriority(pid, lowered)
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
	var sum api.Collected
	ran := map[string]bool{}
	var nodes sync.WaitGroup
	for _, n := range s.File.Nodes {
		nodes.Go(func() {
			for left := ends.Sub(now()); left > 0 && ctx.Err() == nil; left = ends.Sub(now()) {
				var got api.Collected
				err := s.Chaos.Call(ctx, 3*once, http.MethodPost, n.URL+"/lab/garbage", nil, api.Garbage{HeapMB: garbageHeapMB, ForMS: max(1, min(left, once).Milliseconds())}, &got)
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
