package storm

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab/trial"
)

// No kind of fault is lost, and a seed always gives the same plan.
func TestInventory(t *testing.T) {
	t.Parallel()
	var got []string
	for _, engine := range []string{trial.Etcd, trial.Raft} {
		plan, err := Storm{Engine: engine, For: 10 * time.Minute, Seed: 14}.Plan()
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range plan {
			got = append(got, fmt.Sprintf("storm on %s, step %s", engine, step))
		}
		kinds := map[string]bool{}
		for _, st := range planOf(engine, 1, newTrial(context.Background(), engine, FullLength).Rounds) {
			for _, b := range st.Faults {
				kinds[b.Aim+": "+b.Kind] = true
			}
		}
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			got = append(got, fmt.Sprintf("storm on %s, fault at %s", engine, kind))
		}
	}
	want, err := os.ReadFile("testdata/inventory.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(want)) {
		if !slices.Contains(got, strings.TrimSpace(line)) {
			t.Errorf("lost: %s", line)
		}
	}
}
