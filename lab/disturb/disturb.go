// Package disturb takes CPU and disk from the programs of a machine.
package disturb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
)

// ErrIdle: the disturbance took no resources.
var ErrIdle = errors.New("the disturbance took nothing")

// The kinds of disturbance.
const (
	CPU  = "CPU"     // four busy processes per core
	GC   = "GC"      // a garbage collector in every node that never stops
	Disk = "starved" // an engine with low priority beside processes that use CPU and sync the disk
)

const (
	burnersPerCore = 4
	syncers        = 2
	syncBytes      = 256 << 10
)

// Disturbance takes resources from fleets. No process crashes: a change of leader while it
// lasts is a false failover.
type Disturbance struct {
	Kind string
	// Begun and Healed are when it began and ended. Evidence says what it did, Err why it did
	// nothing or failed; both are set by Stop.
	Begun, Healed clock.Instant
	Evidence      string
	Err           error

	cancel  context.CancelFunc
	burning []*child.Process
	writing sync.WaitGroup

	mu      sync.Mutex
	syncs   int
	slowest time.Duration
}

// Start starts the processes and writers; dir is a folder on the disk that they sync.
func (d *Disturbance) Start(ctx context.Context, dir string) error {
	d.Begun = clock.System().Now()
	ctx, d.cancel = context.WithCancel(ctx)
	if d.Kind == GC {
		return nil // the nodes do this one
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
	if d.Kind == Disk {
		for i := range syncers {
			d.writing.Go(func() {
				err := d.sync(ctx, filepath.Join(dir, fmt.Sprint("neighbour-", i)))
				d.mu.Lock()
				d.Err = errors.Join(d.Err, err)
				d.mu.Unlock()
			})
		}
	}
	return nil
}

// sync writes a file again and again, and syncs each write.
func (d *Disturbance) sync(ctx context.Context, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(path) }()
	part := make([]byte, syncBytes)
	for i := int64(0); ctx.Err() == nil; i++ {
		const parts = 64
		began := clock.System().Now()
		_, err := f.WriteAt(part, i%parts*syncBytes)
		if err := errors.Join(err, f.Sync()); err != nil {
			return errors.Join(err, f.Close())
		}
		d.mu.Lock()
		d.syncs++
		d.slowest = max(d.slowest, clock.System().Now().Sub(began))
		d.mu.Unlock()
	}
	return f.Close()
}

// Stop ends the disturbance and records its evidence. It may be called again.
func (d *Disturbance) Stop() {
	if d.cancel == nil || d.Healed != 0 {
		return
	}
	d.cancel()
	var cpu time.Duration
	for _, p := range d.burning {
		<-p.Exited
		cpu += p.Cmd.ProcessState.UserTime()
	}
	d.writing.Wait()
	d.Healed = clock.System().Now()
	var words []string
	lasted := d.Healed.Sub(d.Begun)
	if len(d.burning) > 0 {
		words = append(words, fmt.Sprintf("%d neighbours had %.1f s of CPU in %.1f s on %d cores", len(d.burning), cpu.Seconds(), lasted.Seconds(), runtime.NumCPU()))
		const soon = 5 * time.Second // starting them takes time
		if least := lasted * time.Duration(runtime.NumCPU()) / 10; lasted > soon && cpu < least {
			d.Err = errors.Join(d.Err, fmt.Errorf("%w: the neighbours had %v of CPU in %v, less than %v", ErrIdle, cpu, lasted, least))
		}
	}
	if d.syncs > 0 {
		words = append(words, fmt.Sprintf("%d synced writes of %d KiB, the slowest %v", d.syncs, syncBytes>>10, d.slowest.Round(time.Millisecond)))
	} else if d.Kind == Disk {
		d.Err = errors.Join(d.Err, fmt.Errorf("%w: the neighbours synced nothing", ErrIdle))
	}
	d.Evidence = strings.Join(words, "; ")
}
