package disturb

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
)

// A disturbance takes CPU and syncs the disk until it is stopped or its context ends. It says
// how much it took, and leaves nothing behind.
func TestDisturbance(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := &Disturbance{Kind: Disk}
	if err := d.Start(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	for synced := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.syncs > 0
	}; !synced(); time.Sleep(10 * time.Millisecond) {
		if t.Context().Err() != nil {
			t.Fatal("nothing was synced")
		}
	}
	d.Stop()
	d.Stop()
	if !strings.Contains(d.Evidence, "s of CPU") || !strings.Contains(d.Evidence, "synced writes") || d.Err != nil {
		t.Errorf("it says %q, %v", d.Evidence, d.Err)
	}
	for _, p := range d.burning {
		select {
		case <-p.Exited:
		default:
			t.Errorf("pid %d runs on", p.Cmd.Process.Pid)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// A disturbance that took nothing is an error.
	idle, err := child.Start(exec.CommandContext(t.Context(), "true"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, none := range []*Disturbance{{Kind: CPU, burning: []*child.Process{idle}}, {Kind: Disk}} {
		none.Begun, none.cancel = clock.System().Now().Add(-time.Minute), func() {}
		if none.Stop(); !errors.Is(none.Err, ErrIdle) {
			t.Errorf("%s by nobody: %v, said %q", none.Kind, none.Err, none.Evidence)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	other := &Disturbance{Kind: CPU}
	if err := other.Start(ctx, dir); err != nil {
		t.Fatal(err)
	}
	cancel()
	for _, p := range other.burning {
		<-p.Exited
	}
	other.Stop()
}
