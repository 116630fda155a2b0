package ledger_test

import (
	"net/http"
	"testing"

	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// promtool reports no problem with the ledger's metrics.
func TestMetricsAreWellFormed(t *testing.T) {
	s := serveHere(t, ledger.Config{})
	if _, err := s.Apply(t.Context(), api.Batch{Resource: "r", Stamp: at(1), Writes: []api.Write{{Tick: &api.TickWrite{}}}}); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	cmd := servertest.Command(t, "promtool", "check", "metrics")
	cmd.Stdin = resp.Body
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
