package trial

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

const sec = time.Second

// The flags of nodes follow from the timing.
func TestArgs(t *testing.T) {
	t.Parallel()
	args := Trial{Engine: Etcd, TTL: 30 * sec, Beat: 5 * sec, Misses: 5}.args()
	if want := []string{"--renew-interval", "5s", "--misses", "5", "--rto", "1m41s"}; !slices.Equal(args, want) {
		t.Errorf("%v, want %v", args, want)
	}
}

// Trials of a batch run at the same time and wait for each other at a barrier, where the last
// one acts for all. If one fails the others end, and its error is returned.
func TestTogether(t *testing.T) {
	t.Parallel()
	trials := append([]Trial{{Name: "alone"}}, Together("", Trial{Name: "a"}, Trial{Name: "b"}, Trial{Name: "c"})...)
	trials = append(trials, Together("", Trial{Name: "d"})...)
	var sizes []int
	for _, b := range Batches(trials) {
		sizes = append(sizes, len(b))
	}
	if !slices.Equal(sizes, []int{1, 3, 1}) {
		t.Fatalf("batches of %v", sizes)
	}
	var acted atomic.Int32
	batch := Batches(trials)[1]
	outcomes, err := DoBatch(t.Context(), batch, func(ctx context.Context, trial Trial) (Outcome, error) {
		return Outcome{Trial: trial, Seconds: 3}, trial.batch.begin.wait(ctx, func() error { acted.Add(1); return nil })
	})
	if err != nil || acted.Load() != 1 || outcomes[2].Name != "c" || outcomes[2].Seconds != 1 {
		t.Errorf("%v, acted %d times, %+v", err, acted.Load(), outcomes)
	}
	broken := errors.New("broken")
	_, err = DoBatch(t.Context(), Together("", Trial{Name: "a"}, Trial{Name: "b"}), func(ctx context.Context, trial Trial) (Outcome, error) {
		if trial.Name == "b" {
			return Outcome{}, broken
		}
		return Outcome{}, trial.batch.begin.wait(ctx, func() error { return nil })
	})
	if !errors.Is(err, broken) {
		t.Errorf("%v, want that of the one that failed", err)
	}
}
