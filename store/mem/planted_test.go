//go:build planted

package mem

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store/storetest"
)

// The suite can fail: each bug that is planted in a store is seen by the promise
// that it breaks.
func TestPlanted(t *testing.T) {
	for bug, promise := range planted() {
		t.Run(bug.String(), func(t *testing.T) {
			t.Parallel()
			seen := storetest.Check(t, impatient(t, bug), promise)[promise]
			if seen == nil {
				t.Fatalf("not caught by %q", promise)
			}
			first, _, _ := strings.Cut(seen.Error(), "\n")
			t.Logf("caught by %q: %s", promise, first)
		})
	}
}

// Without a bug the same checks, as impatient, see nothing.
func TestNothingPlanted(t *testing.T) {
	for p, err := range storetest.Check(t, impatient(t, plant.None), slices.Collect(maps.Values(planted()))...) {
		t.Errorf("%s: %v", p, err)
	}
}

func impatient(t *testing.T, bug plant.Bug) storetest.Engine {
	e := engine(t, Options{Plant: plant.Of(bug)})
	e.Patience = 3 * time.Second
	return e
}
