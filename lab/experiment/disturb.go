package experiment

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
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/labapi"
)

// What a machine is disturbed with.
const (
	busyCPU  = "CPU"     // processes that compute, four on each core
	busyGC   = "GC"      // a collector in every node that never rests
	busyDisk = "starved" // an engine of low priority beside neighbours that compute and sync the disk
)

const (
	burnersPerCore = 4
	syncers        = 2
	syncBytes      = 256 << 10
	garbageHeapMB  = 16
	lowered        = 10 // how much nicer a starved engine is
)

// disturbance is what runs beside fleets and takes from them what they need. Nobody
// crashes: a change of leader while it lasts is a mistake.
type disturbance struct {
	kind string

	begun   clock.Instant
	healed  clock.Instant
	cancel  context.CancelFunc
	burning []*child.Process
	writing sync.WaitGroup

	mu       sync.Mutex
	syncs    int
	slowest  time.Duration
	wrong    error
	evidence string
}

// start starts the neighbours; dir is a folder on the disk that they sync.
func (d *disturbance) start(ctx context.Context, dir string) error {
	d.begun = now()
	ctx, d.cancel = context.WithCancel(ctx)
	if d.kind == busyGC {
		return nil
	}
	for range burnersPerCore * runtime.NumCPU() {
		cmd := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		child.DieWithParent(cmd)
		p, err := child.Start(cmd, nil)
		if err != nil {
			return fmt.Errorf("a neighbour cannot be started: %w", err)
		}
		d.burning = append(d.burning, p)
	}
	if d.kind == busyDisk {
		for i := range syncers {
			path := filepath.Join(dir, fmt.Sprint("neighbour-", i))
			d.writing.Go(func() {
				if err := d.syncing(ctx, path); err != nil {
					d.mu.Lock()
					d.wrong = errors.Join(d.wrong, err)
					d.mu.Unlock()
				}
			})
		}
	}
	return nil
}

// syncing writes a file over and over, each time to the disk.
func (d *disturbance) syncing(ctx context.Context, path string) error {
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
		took := now().Sub(began)
		d.mu.Lock()
		d.syncs++
		d.slowest = max(d.slowest, took)
		d.mu.Unlock()
	}
	return f.Close()
}

// stop ends the neighbours and waits for them. It may be called again.
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
	const soon = 5 * time.Second // they have to be started first
	if least := lasted * time.Duration(runtime.NumCPU()) / 10; len(d.burning) > 0 && lasted > soon && cpu < least {
		d.wrong = errors.Join(d.wrong, fmt.Errorf("%w: the neighbours had %v of CPU in %v, less than %v", ErrNotSeen, cpu, lasted, least))
	}
	if d.kind == busyDisk && d.syncs == 0 {
		d.wrong = errors.Join(d.wrong, fmt.Errorf("%w: the neighbours have synced nothing", ErrNotSeen))
	}
	if len(d.burning) > 0 {
		words = append(words, fmt.Sprintf("%d neighbours had %.1f s of CPU in %.1f s on %d cores", len(d.burning), cpu.Seconds(), lasted.Seconds(), runtime.NumCPU()))
	}
	if d.syncs > 0 {
		words = append(words, fmt.Sprintf("%d synced writes of %d KiB, the slowest %v", d.syncs, syncBytes>>10, d.slowest.Round(time.Millisecond)))
	}
	d.evidence = strings.Join(words, "; ")
}

// disturbed is the script of a trial that is disturbed with others: everybody works for
// a while, nobody is harmed.
func disturbed(ctx context.Context, s *trialRun) error {
	if err := s.all(ctx); err != nil {
		return err
	}
	w := s.trial.with
	d := w.disturbance
	if err := w.begin.wait(ctx, w.all, func() error { return d.start(ctx, s.file.Dir) }); err != nil {
		return err
	}
	s.say("%s for %v", d.kind, s.trial.For)
	own, err := s.disturbFleet(ctx, d.kind)
	if err != nil {
		return err
	}
	if err := w.end.wait(ctx, w.all, func() error { d.stop(); return d.wrong }); err != nil {
		return err
	}
	evidence := strings.Trim(d.evidence+"; "+own, "; ")
	s.say("healed: %s", evidence)
	s.round()
	return s.faults.Write(check.Fault{Name: "busy-" + d.kind, Target: "machine", Begun: d.begun, Healed: d.healed, Evidence: evidence, Proof: check.Proof{Kind: check.ProofMeasured}})
}

// disturbFleet is what a fleet has of a disturbance for itself.
func (s *trialRun) disturbFleet(ctx context.Context, kind string) (evidence string, err error) {
	switch kind {
	case busyGC:
		return s.collecting(ctx)
	case busyDisk:
		pids := []int{s.file.Engine.PID}
		if s.trial.Engine == raftEngine {
			pids = nil // the nodes are the engine
			for _, n := range s.file.Nodes {
				pids = append(pids, n.PID)
			}
		}
		for _, pid := range pids {
			nice, err := lowerPriority(pid, lowered)
			if err != nil {
				return "", fmt.Errorf("the priority of the engine (pid %d): %w", pid, err)
			}
			evidence = fmt.Sprintf("the engine has nice %d", nice)
		}
	}
	return evidence, s.hold(ctx, s.trial.For)
}

// collecting keeps the collectors of all nodes busy.
func (s *trialRun) collecting(ctx context.Context) (string, error) {
	const once = 10 * time.Second // a node that was started again is asked again soon
	ends := now().Add(s.trial.For)
	var mu sync.Mutex
	var sum labapi.Collected
	ran := map[string]bool{}
	var nodes sync.WaitGroup
	for _, n := range s.file.Nodes {
		nodes.Go(func() {
			for left := ends.Sub(now()); left > 0 && ctx.Err() == nil; left = ends.Sub(now()) {
				var got labapi.Collected
				err := s.chaos.Call(ctx, 3*once, http.MethodPost, n.URL+"/lab/garbage", nil, labapi.Garbage{HeapMB: garbageHeapMB, ForMS: max(1, min(left, once).Milliseconds())}, &got)
				if err != nil {
					_ = s.hold(ctx, 100*time.Millisecond)
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
	for _, n := range s.file.Nodes {
		if ctx.Err() == nil && !ran[n.ID] {
			return "", fmt.Errorf("%w: the collector of %s did not run", ErrNotSeen, n.ID)
		}
	}
	return fmt.Sprintf("%d collections in %d nodes, which stopped them for %v in sum", sum.Cycles, len(s.file.Nodes), time.Duration(sum.Stopped)*time.Microsecond), context.Cause(ctx)
}
