// Package browser tests the console in a real browser.
package browser

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/servertest"
)

// node runs a file of tests in Node, with a browser and the tenure program. Screenshots are kept
// in the cache.
func node(t *testing.T, file string) {
	t.Helper()
	b := servertest.FindBrowser(t, "../web")
	top, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	shots, err := child.CacheDir("console")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	bin := t.TempDir()
	if err := child.Build(ctx, top, bin+string(filepath.Separator), nil, "server/cmd/tenure"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, b.Node, "--test", "--test-reporter=spec", filepath.Join("..", "web", "test", file))
	cmd.Env = append(os.Environ(), b.Env...)
	cmd.Env = append(cmd.Env, "TENURE_BIN="+filepath.Join(bin, "tenure"), "CHROMIUM="+b.Chromium, "CONSOLE_MODULES="+b.Modules, "SCREENSHOTS="+shots)
	// Interrupted tests end their services and the browser; so do killed ones, whose standard
	// input ends.
	cmd.Cancel = func() error { return child.Interrupt(cmd.Process) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// The page does what docs/console.md says, in a real browser on a real service. web/test has the
// claims.
func TestBrowser(t *testing.T) {
	node(t, "console.test.mjs")
}

// Changes are visible soon, 10,000 groups are shown soon, and the page is light. A missed bar fails.
func TestBars(t *testing.T) {
	if os.Getenv("TENURE_BENCH_CONSOLE") == "" {
		t.Skip("a benchmark: make bench-console")
	}
	node(t, "bars.mjs")
}
