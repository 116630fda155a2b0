package chaos

import (
	"context"
	"fmt"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/chaos/strace"
)

// failDisk makes the ledger's disk fail: strace answers its system calls instead of the
// kernel. Syncs fail with an I/O error, or writes with no space left. It has an effect when
// such calls were made. It needs strace and the permission to trace the process. When strace
// ends, for whatever reason, the disk works again.
func failDisk(calls, with, what string) func(*Fleet, Spec, []inspect.Target) (*procedure, error) {
	return func(f *Fleet, s Spec, targets []inspect.Target) (*procedure, error) {
		t, err := strace.New(f.Fleet, targets[0], calls, with)
		if err != nil {
			return nil, err
		}
		return &procedure{
			healed: "has its disk back", heal: t.Detach,
			set: func(ctx context.Context) (string, clock.Instant, error) {
				begun := now()
				return fmt.Sprintf("its %s fail (%s) for %v", what, with, s.For), begun, t.Attach(ctx)
			},
			felt: func(_ context.Context, healed bool) string {
				if !healed || t.Hits == 0 {
					return ""
				}
				return fmt.Sprintf("%s that failed (%s): %d", what, with, t.Hits)
			},
		}, nil
	}
}
