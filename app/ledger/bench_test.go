package ledger_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/app/ledger"
	"github.com/tenurehq/tenure/app/ledger/api"
)

// The bar of group commit: with 200 callers that each take one number, at least ten
// times as many get theirs as with one transaction a call, fsync on in both, in one
// run. TENURE_BENCH=1 runs it.
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
	overHTTP := func(l *ledger.Ledger) func(context.Context) error {
		server := httptest.NewServer(l.Handler(0))
		t.Cleanup(server.Close)
		lines := make(chan *line, callers)
		return func(context.Context) error { return onLine(server.Listener.Addr().String(), lines) }
	}
	direct := func(l *ledger.Ledger) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := l.Apply(ctx, api.Batch{Resource: "r", Stamp: at(1), Writes: []api.Write{{Sequence: &api.SequenceWrite{Name: "ids", N: 1}}}})
			return err
		}
	}
	for _, how := range []struct {
		name string
		call func(*ledger.Ledger) func(context.Context) error
	}{{"go", direct}, {"http", overHTTP}} {
		alone := open(t, ledger.Config{DB: filepath.Join(t.TempDir(), "alone.db"), Group: 1})
		grouped := open(t, ledger.Config{DB: filepath.Join(t.TempDir(), "grouped.db")})
		callAlone, callGrouped := how.call(alone), how.call(grouped)
		var one, many float64
		for range rounds {
			one += rate(t, callers, span, callAlone) / rounds
			many += rate(t, callers, span, callGrouped) / rounds
		}
		verdict := "ok"
		if many/one < bar {
			verdict = "short"
		}
		// Over HTTP the generator on the same machine takes its share: a second
		// figure.
		if verdict == "short" && how.name == "go" {
			t.Errorf("%s: group commit is %.1f times as fast, want %.0f", how.name, many/one, bar)
		}
		t.Logf("ledger group commit (%s): alone %.0f/s, grouped %.0f/s, ratio %.1f, bar %.0f, aim %.0f: %s", how.name, one, many, many/one, bar, aim, verdict)
	}
}

// line is a connection that asks for one number after another. The generator shares
// the machine with the ledger, so it does no more than it must.
type line struct {
	net.Conn
	in *bufio.Reader
}

const oneNumber = "POST /v1/resources/r/sequences/ids HTTP/1.1\r\nHost: ledger\r\nFencing-Deployment: prod\r\nFencing-Group: billing\r\n" +
	"Fencing-Token: 1\r\nContent-Length: 7\r\n\r\n{\"n\":1}"

func onLine(addr string, idle chan *line) error {
	var l *line
	select {
	case l = <-idle:
	default:
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		l = &line{conn, bufio.NewReader(conn)}
	}
	if _, err := io.WriteString(l, oneNumber); err != nil {
		return err
	}
	resp, err := http.ReadResponse(l.in, nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	select {
	case idle <- l:
	default:
		_ = l.Close()
	}
	return err
}

// rate is how many calls a second succeed.
func rate(t *testing.T, callers int, span time.Duration, call func(context.Context) error) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	var done atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				// Not ctx: a call under way at the end is let through.
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
