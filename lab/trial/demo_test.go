package trial

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/lab"
)

func programs(t *testing.T) string {
	t.Helper()
	bin, err := lab.FindPrograms(t.Context(), "", func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// The demonstration succeeds, and shows both tokens.
func TestDemo(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := Demo(t.Context(), lab.Config{Bin: programs(t), Pulse: lab.CanPulse}, lab.NewTimeline(&out)); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if lab.CanPulse && !strings.Contains(out.String(), "its keeper says so: node-") {
		t.Errorf("no leader was killed:\n%s", &out)
	}
	for _, want := range []string{"is stopped before its write", "leads with token 2", "sealed", "its token is 1 and the highest seen is 2", "has stepped down", "none twice"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
}

// Without its fence the ledger accepts the stale write, and the demonstration fails.
func TestDemoWithoutFence(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := Demo(t.Context(), lab.Config{Bin: programs(t), Unfenced: true}, lab.NewTimeline(&out))
	if !errors.Is(err, ErrNotSeen) {
		t.Errorf("%v, want ErrNotSeen\n%s", err, &out)
	}
	if !strings.Contains(out.String(), "TOOK") {
		t.Errorf("the ledger is not said to have taken it:\n%s", &out)
	}
}
