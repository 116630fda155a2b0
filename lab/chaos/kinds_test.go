package chaos_test

import (
	"errors"
	"testing"

	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/labapi"
)

// Every row of the table of faults says what it does and how its effect shows, and is
// found by its name. A fault that is not in the table cannot be injected.
func TestKinds(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, k := range chaos.Kinds() {
		if seen[k.Name] || k.What == "" || k.Shown == "" || (k.Class == "kill") != (k.Shown == chaos.Exited && k.Name != chaos.StopLeader && !k.Named) {
			t.Errorf("%+v", k)
		}
		seen[k.Name] = true
		if found, ok := chaos.KindOf(k.Name); !ok || found.What != k.What {
			t.Errorf("%s is not found", k.Name)
		}
	}
	path := t.TempDir() + "/fleet.json"
	put(t, path, "http://127.0.0.1:1", func(*labapi.FleetFile) {})
	f, err := chaos.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Inject(t.Context(), chaos.Spec{Kind: "explode"}); !errors.Is(err, inspect.ErrCannot) {
		t.Errorf("a fault that is not in the table: %v", err)
	}
	// The fleet of the file has no separate engine, and no node answers.
	for _, role := range []string{inspect.Follower, inspect.Member, inspect.Quorum} {
		if _, err := f.Inject(t.Context(), chaos.Spec{Kind: chaos.Pause, Targets: []string{role}}); !errors.Is(err, inspect.ErrCannot) {
			t.Errorf("nobody has the role %s: %v", role, err)
		}
	}
}
