// Package deploy has files for operators: see docs/operations.md. Only the tests are Go.
package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/internal/servertest"
)

// The alert rules are valid, do not fire on a healthy deployment, and each fires on its
// fault.
func TestAlerts(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		if out, err := servertest.Command(t, "promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}

	rules, tests := read(t, "alerts.yaml"), read(t, "alerts_test.yaml")
	named := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	if len(named) == 0 {
		t.Fatal("no rule was found")
	}
	for _, m := range named {
		if strings.Count(tests, "alertname: "+m[1]) < 2 {
			t.Errorf("%s is not tested both silent and firing", m[1])
		}
	}
}

// The rules use series that the programs export: those of docs/inventory, which a test compares
// with the code.
func TestAlertsNameSeries(t *testing.T) {
	exported := strings.Fields(read(t, "../docs/inventory/metrics.txt"))
	for _, name := range regexp.MustCompile(`tenure_[a-z_]+`).FindAllString(read(t, "alerts.yaml"), -1) {
		if name = strings.TrimSuffix(name, "_bucket"); !slices.Contains(exported, name) {
			t.Errorf("nothing exports %s", name)
		}
	}
}

// systemd accepts the units without a word, and rates the exposure of the service at 3 or less.
func TestUnits(t *testing.T) {
	dir := t.TempDir()
	for from, to := range map[string]string{"tenure.service": "tenure.service", "tenure-keeper.service": "tenure-keeper.service", "tenure-exec@.service": "tenure-exec@billing.service"} {
		unit := read(t, from)
		if !strings.Contains(unit, "StartLimitIntervalSec=0\n") || !strings.Contains(unit, "\nUser=") {
			t.Errorf("%s: no StartLimitIntervalSec=0, or no User=", from)
		}
		// The program need not be installed.
		unit = strings.ReplaceAll(unit, "/usr/local/bin/tenure", "/bin/true")
		path := filepath.Join(dir, to)
		if err := os.WriteFile(path, []byte(unit), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := servertest.Command(t, "systemd-analyze", "verify", "--man=no", path).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", from, err, out)
		}
	}
	// --threshold is in tenths.
	if out, err := servertest.Command(t, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=30", filepath.Join(dir, "tenure.service")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The commands in the Containerfile make every file that it copies.
func TestContainerfile(t *testing.T) {
	text := read(t, "Containerfile")
	copies := regexp.MustCompile(`(?m)^COPY (?:--chown=\S+ )?(\S+) `).FindAllStringSubmatch(text, -1)
	if len(copies) == 0 {
		t.Fatal("nothing is copied")
	}
	commands, _, _ := strings.Cut(text, "podman build")
	for _, c := range copies {
		if !strings.Contains(commands, "deploy/image/"+c[1]) && !(strings.Contains(commands, "/"+c[1]+" deploy/image/")) {
			t.Errorf("no command makes deploy/image/%s", c[1])
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
