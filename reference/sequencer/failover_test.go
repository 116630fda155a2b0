package sequencer

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// careless is a leader that checks nothing before it writes and sometimes does not get the
// answer: only the ledger prevents harm.
type careless struct {
	l     *ledger.Ledger
	stamp fence.Stamp
}

func (c careless) Write(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	a, err := c.l.Apply(ctx, ledgerapi.Batch{Resource: "billing", Stamp: c.stamp, Writes: writes})
	if err == nil && rand.N(20) == 0 {
		return a, ledgerapi.ErrUnknown
	}
	return a, err
}

// Across changes of leader, with old leaders that continue until they are refused, numbers
// strictly increase for calls that follow each other, none is handed out twice, and the token
// never falls.
func TestFailovers(t *testing.T) {
	l, err := ledger.Open(t.Context(), ledger.Config{DB: filepath.Join(t.TempDir(), "l.db"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var leader atomic.Pointer[Sequencer]
	var running sync.WaitGroup
	life, end := context.WithCancel(t.Context())
	defer end()
	elect := func(token fence.Token) {
		stamp := fence.Stamp{Deployment: "test", Group: "billing", Token: token}
		if err := l.Seal(t.Context(), "billing", stamp, "n"); err != nil {
			t.Error(err)
		}
		read := func(ctx context.Context) (uint64, error) {
			s, err := l.Sequence(ctx, "billing", "next")
			if errors.Is(err, ledgerapi.ErrNotFound) {
				err = nil
			}
			return s.LastSeq, err
		}
		last, err := read(t.Context())
		if err != nil {
			t.Error(err)
		}
		s := New(Config{Writer: careless{l, stamp}, Name: "next", Token: token, Last: last, Read: read})
		// It is not stopped: it ends when it is refused.
		running.Go(func() { _ = s.Run(life) })
		leader.Store(s)
	}
	elect(1)

	type call struct {
		began, ended time.Time
		token        fence.Token
		first, last  uint64
	}
	const callers, terms = 16, 15
	histories := make([][]call, callers)
	stop := make(chan struct{})
	var calling sync.WaitGroup
	for i := range callers {
		calling.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s, n := leader.Load(), 1+rand.N(uint64(3))
				c := call{began: time.Now(), token: s.Token()}
				first, err := s.Next(n)
				if c.ended = time.Now(); err == nil {
					c.first, c.last = first, first+n-1
					histories[i] = append(histories[i], c)
				}
			}
		})
	}
	for token := fence.Token(2); token <= terms; token++ {
		time.Sleep(20 * time.Millisecond)
		elect(token)
	}
	time.Sleep(20 * time.Millisecond)
	close(stop)
	calling.Wait()
	end()
	running.Wait()

	all := slices.Concat(histories...)
	slices.SortFunc(all, func(a, b call) int { return int(a.first) - int(b.first) })
	if len(all) < terms {
		t.Fatalf("only %d calls were answered", len(all))
	}
	for i := 1; i < len(all); i++ {
		a, b := all[i-1], all[i]
		switch {
		case b.first <= a.last:
			t.Fatalf("%d to %d and %d to %d overlap", a.first, a.last, b.first, b.last)
		case b.token < a.token:
			t.Fatalf("%d has token %d, and %d after it has %d", a.first, a.token, b.first, b.token)
		}
	}
	// A smaller number must not have been requested after a larger one was answered.
	earliest := all[len(all)-1].ended
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].began.After(earliest) {
			t.Fatalf("%d was asked for after a larger number had been answered", all[i].first)
		}
		if all[i].ended.Before(earliest) {
			earliest = all[i].ended
		}
	}
	t.Logf("%d calls over %d terms", len(all), terms)
}
