package ledger_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/ledgerhttp"
)

// The bar of group commit: 200 callers that each take one number get at least ten times as
// many numbers as with one transaction per call, with fsync in both cases, in one run.
// TENURE_BENCH=1 runs it.
func TestGroupCommitBar(t *testing.T) {
	if os.Getenv("TENURE_BENCH") == "" {
		t.Skip("a benchmark: set TENURE_BENCH=1")
	}
	const (
		callers = 200
		rounds  = 3
		span    = 2 * time.Second
		bar     = 10.0
		aim     = 20.0
	)
	overHTTP := func(l *ledger.Ledger) []call {
		server := httptest.NewServer(ledgerhttp.Handler(l, 0))
		t.Cleanup(server.Close)
		calls := make([]call, callers)
		for i := range calls {
			line, err := dialLine(server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = line.conn.Close() })
			calls[i] = line.ask
		}
		return calls
	}
	direct := func(l *ledger.Ledger) []call {
		return slices.Repeat([]call{func(ctx context.Context) error {
			_, err := l.Apply(ctx, api.Batch{Resource: "r", Stamp: at(1), Writes: []api.Write{{Sequence: &api.SequenceWrite{Name: "ids", N: 1}}}})
			return err
		}}, callers)
	}
	for _, how := range []struct {
		name  string
		calls func(*ledger.Ledger) []call
	}{{"go", direct}, {"http", overHTTP}} {
		alone := open(t, ledger.Config{DB: filepath.Join(t.TempDir(), "alone.db"), Group: 1})
		grouped := open(t, ledger.Config{DB: filepath.Join(t.TempDir(), "grouped.db")})
		callAlone, callGrouped := how.calls(alone), how.calls(grouped)
		var one, many float64
		for range rounds {
			one += rate(t, span, callAlone) / rounds
			many += rate(t, span, callGrouped) / rounds
		}
		verdict := "ok"
		if many/one < bar {
			verdict = "short"
		}
		// Over HTTP the load generator uses the same cores, so this is a second figure without a bar.
		if verdict == "short" && how.name == "go" {
			t.Errorf("%s: group commit is %.1f times as fast, want %.0f", how.name, many/one, bar)
		}
		t.Logf("ledger group commit (%s): alone %.0f/s, grouped %.0f/s, ratio %.1f, bar %.0f, aim %.0f: %s", how.name, one, many, many/one, bar, aim, verdict)
	}
}

// line is a connection that takes one number after another. The load generator shares the
// cores with the ledger, so it avoids net/http, which costs more per request than the ledger.
type line struct {
	conn net.Conn
	in   *bufio.Reader
}

var oneNumber = []byte("POST /v1/resources/r/sequences/ids HTTP/1.1\r\nHost: ledger\r\nFencing-Deployment: prod\r\nFencing-Group: billing\r\n" +
	"Fencing-Token: 1\r\nContent-Length: 7\r\n\r\n{\"n\":1}")

func dialLine(addr string) (*line, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &line{conn, bufio.NewReaderSize(conn, 1024)}, nil
}

// ask takes one number. It reads the status, the length and the body of the answer.
func (l *line) ask(context.Context) error {
	if _, err := l.conn.Write(oneNumber); err != nil {
		return err
	}
	status, err := l.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("it answered %q", status)
	}
	length := -1
	for {
		header, err := l.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(header) <= len("\r\n") {
			break
		}
		if text, ok := bytes.CutPrefix(header, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(text))); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return errors.New("an answer without Content-Length")
	}
	_, err = l.in.Discard(length)
	return err
}

// call takes one number, for one caller.
type call func(context.Context) error

// rate is how many calls a second succeed, of callers that each make one at a time.
func rate(t *testing.T, span time.Duration, callers []call) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	var done atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for _, call := range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				// Not ctx: a pending call may finish.
				err := call(context.WithoutCancel(ctx))
				switch {
				case err == nil:
					done.Add(1)
				case !errors.Is(err, api.ErrBusy):
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	return float64(done.Load()) / time.Since(began).Seconds()
}
