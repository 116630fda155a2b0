//go:build linux

package upgrade

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

const (
	// patience bounds every wait.
	patience = 90 * time.Second
	// ttl is how long a failover takes after a kill.
	ttl = "4s"
)

// process is a running program. If it serves, its first line has its address.
type process struct {
	*child.Process
	said *child.Tail
	URL  string `json:"url"`
}

// start starts a program, which ends with the test.
func start(t *testing.T, program string, args ...string) *process {
	t.Helper()
	p := &process{said: &child.Tail{}}
	cmd := exec.Command(program, args...)
	child.DieWithParent(cmd)
	cmd.Stderr = p.said
	var err error
	if p.Process, err = child.Start(cmd, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// serve starts a program that serves, and waits until it is ready.
func serve(t *testing.T, program string, args ...string) *process {
	t.Helper()
	p := &process{said: &child.Tail{}}
	cmd := exec.Command(program, args...)
	child.DieWithParent(cmd)
	cmd.Stderr = p.said
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan error, 1)
	p.Process, err = child.Start(cmd, func() {
		lines := bufio.NewReader(stdout)
		line, err := lines.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, p)
		}
		ready <- err
		_, _ = io.Copy(io.Discard, lines)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	select {
	case err = <-ready:
	case <-time.After(patience):
		err = errors.New("it says nothing")
	}
	if err != nil {
		p.Kill()
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, p.said)
	}
	return p
}

// end asks a program to exit, and waits for that.
func (p *process) end(t *testing.T) {
	t.Helper()
	_ = child.Interrupt(p.Cmd.Process)
	select {
	case <-p.Exited:
	case <-time.After(patience):
		t.Fatalf("%s does not stop\n%s", p.Cmd.Path, p.said)
	}
}

// run runs a program and returns its output and exit code.
func run(t *testing.T, program string, args ...string) (stdout string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, &said)
	}
	if err != nil {
		t.Logf("%s: %s", strings.Join(args, " "), strings.TrimSpace(said.String()))
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// must is run; the program must succeed.
func must(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, code := run(t, program, args...)
	if code != 0 {
		t.Fatalf("%s %s: exit code %d", program, strings.Join(args, " "), code)
	}
	return out
}

// read is must; the program must print JSON.
func read[T any](t *testing.T, program string, args ...string) (out T) {
	t.Helper()
	text := must(t, program, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, text)
	}
	return out
}

// call sends a request and expects a status.
func call[T any](t *testing.T, status int, method, url string, in any) (out T) {
	t.Helper()
	got, err := try(t.Context(), method, url, in, &out)
	if got != status {
		t.Fatalf("%s %s: %d, not %d: %v", method, url, got, status, err)
	}
	return out
}

func try(ctx context.Context, method, url string, in, out any) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return 0, err
	}
	if in == nil {
		body = nil
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return resp.StatusCode, fmt.Errorf("%s", text)
	}
	return resp.StatusCode, json.Unmarshal(text, out)
}

// until waits until a condition holds.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}
