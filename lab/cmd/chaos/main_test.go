package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
)

// asProgram makes the test binary run the program.
const asProgram = "CHAOS_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

func none(string) (string, bool) { return "", false }

// Wrong usage is explained, with code 2, before the fleet is looked for.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		env  string
		want string
		code int
	}{
		{"", "", "missing command", exitUsage},
		{"explode", "", `unknown command "explode"`, exitUsage},
		{"--help", "", "partition-leader", exitOK},
		{"partition-leader -h", "", "what the node sends is lost", exitOK},
		{"kill-leader --secs=3", "", "secs", exitUsage},
		{"kill-leader now", "", `unexpected argument "now"`, exitUsage},
		{"partition-leader -from moon", "", `from: "moon"`, exitUsage},
		{"partition-leader --way=sideways", "", `way: "sideways"`, exitUsage},
		{"partition-leader --secs=-1", "", "secs: -1", exitUsage},
		{"gc-pause-leader --ms=-5", "", "ms: -5", exitUsage},
		{"skew-leader", "", "missing error of the clock", exitUsage},
		{"kill", "", "missing target", exitUsage},
		{"pause --what=ledger --ms=-5", "", "ms: -5", exitUsage},
		{"partition --what=node-1 --from=moon", "", `from: "moon"`, exitUsage},
		{"churn --every=1ms", "", "every and for: 1ms", exitUsage},
		{"list -o yaml", "", `o: "yaml"`, exitUsage},
		{"list", "yaml", `o: "yaml"`, exitUsage},
		{"kill-leader --fleet=/nowhere/fleet.json", "", "fleet file", exitFailure},
	} {
		var out, said bytes.Buffer
		env := func(name string) (string, bool) { return c.env, name == "CHAOS_O" }
		code := run(t.Context(), strings.Fields(c.args), env, &out, &said)
		if code != c.code || !strings.Contains(said.String(), c.want) || out.Len() > 0 {
			t.Errorf("chaos %s: code %d, said %q and %q; want %d and %q", c.args, code, &said, &out, c.code, c.want)
		}
	}
}

// A fault ends with the program that set it. On SIGINT it is healed and reported, with an error.
// A stopped process is resumed even if the program is killed.
func TestProgramEnds(t *testing.T) {
	t.Parallel()
	bin, err := lab.FindPrograms(t.Context(), "", func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "fleet.json")
	fleet, err := lab.Start(t.Context(), lab.Config{Bin: bin, File: path, TTL: 2 * time.Second, Workers: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := fleet.Stop(); err != nil {
			t.Error(err)
		}
	}()
	f, err := chaos.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args     string
		with     syscall.Signal
		standing string
		told     string
	}{
		{"gc-pause-leader -ms 60000 -o json", syscall.SIGINT, "stopped", "stopped by signal: interrupt"},
		{"gc-pause-leader --ms=60000", syscall.SIGKILL, "stopped", ""},
		{"partition-leader --secs=60 -o=json", syscall.SIGTERM, "cut off the engine", "stopped by signal: terminated"},
	} {
		cmd := exec.Command(self, append(strings.Fields(c.args), "--fleet", path)...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		var out bytes.Buffer
		var said child.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// A fault that is being set may be in effect in part.
		await(t, f, c.args+": the fault", func(all string) bool {
			return strings.Contains(all, c.standing) && strings.Contains(said.String(), "(token ")
		})
		if err := cmd.Process.Signal(c.with); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		await(t, f, c.args+": nothing left", func(all string) bool { return all == "" })
		if c.told == "" {
			continue
		}
		var got answer
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || cmd.ProcessState.ExitCode() != exitFailure {
			t.Fatalf("chaos %s: code %d, %v: %q, %q", c.args, cmd.ProcessState.ExitCode(), err, &out, &said)
		}
		if got.Error != c.told || len(got.Faults) != 1 || got.Faults[0].Healed <= got.Faults[0].Begun || !strings.Contains(said.String(), "healed: ") {
			t.Errorf("chaos %s: %+v, %q", c.args, got, &said)
		}
	}

	var out, said bytes.Buffer
	if code := run(t.Context(), []string{"list", "-fleet", path}, none, &out, &said); code != exitOK || strings.Count(out.String(), "node-") != 3 || !strings.Contains(out.String(), "leader ") {
		t.Errorf("list: code %d: %s%s", code, &out, &said)
	}
	out.Reset()
	if code := run(t.Context(), []string{"resign-leader", "-fleet", path}, none, &out, &said); code != exitOK || !strings.HasPrefix(out.String(), "resign-leader node-") {
		t.Errorf("resign-leader: code %d: %s%s", code, &out, &said)
	}
	// A program whose output is closed still heals.
	unread, told, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	deaf := exec.Command(self, "partition-leader", "--secs=0.2", "--from=ledger", "--fleet", path)
	deaf.Env, deaf.Stderr = append(os.Environ(), asProgram+"=1"), told
	_ = unread.Close()
	_ = deaf.Run() // the fault may have had no effect
	_ = told.Close()
	if deaf.ProcessState.ExitCode() < 0 {
		t.Errorf("without a reader: %v", deaf.ProcessState)
	}
	await(t, f, "nothing left", func(all string) bool { return all == "" })

	// Another program can undo what a killed program has left.
	cut, stop := context.WithCancel(t.Context())
	defer stop()
	cmd := exec.CommandContext(cut, self, "partition-leader", "--secs=60", "--fleet", path)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, f, "the cut", func(all string) bool { return strings.Contains(all, "cut off the engine") })
	stop()
	_ = cmd.Wait()
	if code := run(t.Context(), []string{"heal", "-fleet", path}, none, &out, &said); code != exitOK {
		t.Errorf("heal: code %d: %s", code, &said)
	}
	await(t, f, "nothing left", func(all string) bool { return all == "" })
}

// await waits until holds accepts the faults in effect.
func await(t *testing.T, f *chaos.Fleet, what string, holds func(standing string) bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		s, err := f.Survey(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, n := range s.Nodes {
			all = append(all, n.Standing...)
		}
		if holds(strings.Join(all, "; ")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within 30s: %s: %v", what, all)
		}
	}
}
