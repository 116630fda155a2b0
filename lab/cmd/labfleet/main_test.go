package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/reference/command"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/cli"
)

func none(string) (string, bool) { return "", false }

// With fencing off a ledger logs a warning, says so when it is ready, and marks its answers.
func TestFencingOff(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	out, stdout := io.Pipe()
	stderr := &child.Buffer{}
	code := make(chan int, 1)
	go func() {
		code <- cli.Run(ctx, newRoot(none), []string{"ledger", "--listen", "127.0.0.1:0", "--db", filepath.Join(t.TempDir(), "l.db"), "--fencing=off"}, strings.NewReader(""), stdout, stderr)
		_ = stdout.Close()
	}()
	var ready command.LedgerReady
	if err := json.NewDecoder(out).Decode(&ready); err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	resp, err := http.Get(ready.URL + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if ready.Fencing || resp.Header.Get(api.HeaderFencing) != "off" || !strings.Contains(stderr.String(), "FENCING IS OFF") {
		t.Errorf("%+v, %v\n%s", ready, resp.Header, stderr)
	}
	cancel(errors.New("the test ends"))
	if got := <-code; got != cli.ExitOK {
		t.Errorf("exit code %d\n%s", got, stderr)
	}
}

// A wrong value is wrong usage.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"ledger", "--fencing=maybe"}, {"node", "--clock-drift=fast"}, {"node", "--raft-lease=1s", "--store=mem"}} {
		var stdout, stderr bytes.Buffer
		if code := cli.Run(t.Context(), newRoot(none), args, strings.NewReader(""), &stdout, &stderr); code != cli.ExitUsage || stdout.Len() > 0 {
			t.Errorf("%q: exit code %d, %q, %q", args, code, &stdout, &stderr)
		}
	}
}
