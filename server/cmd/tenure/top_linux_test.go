package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/server/cli"
)

// `tenure top` shows a leader, asks it to step down after y, shows that the service is gone and
// that it is back, and leaves the terminal as it was. Without a terminal it prints the changes.
func TestTop(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := startServe(t, "--data-dir="+t.TempDir())
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(self, args...)
		cmd.Env = append(os.Environ(), mainEnv+"=1", "TENURE_STORE="+s.ready.URL, "NO_COLOR=1")
		return cmd
	}
	leader := command("exec", "billing", "--id=node-1", "--ttl=60s", "--", "sleep", "600")
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- leader.Wait() }()
	defer func() { _ = leader.Process.Kill() }()

	cmd := command("top")
	term := openTerminal(t, cmd)
	term.shows("billing                  node-1")
	term.types("d")
	term.shows("ask node-1 to give up billing (term 1)? y/n")
	term.types("y")
	term.shows("billing (term 1): done")
	if err := <-ended; err == nil {
		t.Error("the command of the leader ended with 0, although it was stopped")
	}
	term.shows("billing                  (none)")

	listen := strings.TrimPrefix(s.ready.URL, "http://")
	s.kill()
	term.shows("disconnected for")
	s.launch(listen)
	term.shows("tenure top  1 groups")
	term.types("q")
	term.shows("\x1b[?1049l")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}

	var stdout, stderr bytes.Buffer
	plain := command("top", "billing")
	plain.Stdout, plain.Stderr = &lines{after: 1, then: func() { _ = plain.Process.Signal(os.Interrupt) }, to: &stdout}, &stderr
	if err := plain.Run(); err != nil || !strings.Contains(stdout.String(), "vacant") || strings.Contains(stdout.String(), "\x1b") {
		t.Errorf("%v, %q, %q", err, stdout.String(), stderr.String())
	}
	if code := run(t.Context(), []string{"top", "Not a group"}, environment(), strings.NewReader(""), &stdout, &stderr); code != cli.ExitUsage {
		t.Errorf("a bad name: exit code %d", code)
	}
}

// lines calls a function when a number of lines below the titles were written.
type lines struct {
	after int
	then  func()
	to    *bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.to.Write(p)
	if bytes.Count(l.to.Bytes(), []byte("\n")) > l.after && l.then != nil {
		l.then()
		l.then = nil
	}
	return len(p), nil
}
