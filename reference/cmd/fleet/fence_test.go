package main

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/ledgerhttp"
)

// `tenure fence` reads and advances the mark of a ledger's resource as of any other sink.
func TestTenureFence(t *testing.T) {
	top, err := child.Repository(".")
	if err != nil {
		if top, err = filepath.Abs("../../.."); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(t.TempDir(), "tenure")
	if err := child.Build(t.Context(), top, program, nil, "server/cmd/tenure"); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(t.Context(), ledger.Config{DB: filepath.Join(t.TempDir(), "ledger.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := httptest.NewServer(ledgerhttp.Handler(l, 0))
	t.Cleanup(s.Close)
	tenure := func(wantCode int, wantOut string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, append(args, "--sink", s.URL)...)
		cmd.Env = append(os.Environ(), "HTTP_PROXY=")
		out, err := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != wantCode || string(out) != wantOut {
			t.Errorf("tenure %s: exit code %d, %q, %v; want %d, %q", strings.Join(args, " "), code, out, err, wantCode, wantOut)
		}
	}
	advance := func(token string, more ...string) []string {
		return append([]string{"fence", "advance", "invoices", "--token", token, "--deployment", "prod", "--group", "billing", "--yes"}, more...)
	}
	tenure(3, "", "fence", "show", "invoices")
	tenure(0, "prod/billing token 5000000\n", advance("5000000")...)
	tenure(0, "prod/billing token 5000001 session 1f\n", advance("5000001", "--session", "1f")...)
	tenure(0, "prod/billing token 5000001 session 1f\n", "fence", "show", "invoices")
	tenure(4, "", advance("6")...)
}
