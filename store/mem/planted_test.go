//go:build planted

package mem_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease/storetest"
	"github.com/tenurehq/tenure/store/mem"
)

// The suite can fail: each bug that is planted in a store is seen by the promise
// that it breaks.
func TestPlanted(t *testing.T) {
	for bug, promise := range planted() {
		t.Run(bug.String(), func(t *testing.T) {
			broken := storetest.Check(t, impatient(t, bug))
			if broken[promise] == nil {
				t.Errorf("not caught by %q", promise)
			}
			for _, p := range slices.Sorted(maps.Keys(broken)) {
				first, _, _ := strings.Cut(broken[p].Error(), "\n")
				t.Logf("caught by %q: %s", p, first)
			}
		})
	}
}

// Without a bug the same checks, as impatient, see nothing.
func TestNothingPlanted(t *testing.T) {
	for p, err := range storetest.Check(t, impatient(t, plant.None)) {
		t.Errorf("%s: %v", p, err)
	}
}

func impatient(t *testing.T, bug plant.Bug) storetest.Engine {
	e := engine(t, mem.Options{Plant: plant.Of(bug)})
	e.Patience = 3 * time.Second
	return e
}
