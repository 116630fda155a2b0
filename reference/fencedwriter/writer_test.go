package fencedwriter_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/elector"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	"github.com/tenurehq/tenure/reference/ledger"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// quietGrant is a grant that does nothing.
type quietGrant struct{}

func (quietGrant) Ended(error)                             {}
func (quietGrant) Successor(context.Context, string) error { return nil }
func (quietGrant) Release(context.Context, string) error   { return nil }

func (quietGrant) Suspect(context.Context, fence.Token) error { return nil }

func newTerm(token fence.Token) (*tenure.Term, *elector.Trust, func(error) bool) {
	return newTermOf("n1", token)
}

func newTermOf(session string, token fence.Token) (*tenure.Term, *elector.Trust, func(error) bool) {
	c := clock.System()
	tr := elector.NewTrust(c)
	tr.Set(c.Now().Add(time.Hour))
	t, end := elector.NewTerm(elector.TermConfig{
		Group: "billing", Token: token, Deployment: "test", Session: fence.SessionDigest(session), Candidate: tenure.Candidate{ID: "n1"}, Trust: tr, Grant: quietGrant{},
	})
	return t, tr, end
}

func openLedger(t *testing.T) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), ledger.Config{DB: filepath.Join(t.TempDir(), "l.db"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func checkpoint() ledgerapi.Write {
	return ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: "a", Value: json.RawMessage(`1`)}}
}

// A write that is refused because another node leads ends the term at once.
func TestRefusedStepsDown(t *testing.T) {
	l := openLedger(t)
	old, _, _ := newTerm(1)
	p := fencedwriter.New(fencedwriter.Config{Ledger: l, Resource: "billing", Term: old})
	if _, err := p.Write(t.Context(), checkpoint()); err != nil {
		t.Fatal(err)
	}
	next, _, _ := newTerm(2)
	if err := l.Seal(t.Context(), "billing", next.Stamp(), "n2"); err != nil {
		t.Fatal(err)
	}
	_, err := p.Write(t.Context(), checkpoint())
	var stale *fence.StaleError
	if !errors.As(err, &stale) || !fencedwriter.Stop(err) || !p.Refused() {
		t.Fatalf("a stale write: %v", err)
	}
	if err := old.Check(); !errors.Is(err, tenure.ErrResigned) {
		t.Fatalf("after a refused write the term is %v", err)
	}
}

// If another session has sealed the ledger with the same token, the write is refused as a
// clone, and the term ends.
func TestCloneStepsDown(t *testing.T) {
	l := openLedger(t)
	first, _, _ := newTermOf("first", 1)
	if err := l.Seal(t.Context(), "billing", first.Stamp(), "n1"); err != nil {
		t.Fatal(err)
	}
	second, _, _ := newTermOf("second", 1)
	_, err := fencedwriter.New(fencedwriter.Config{Ledger: l, Resource: "billing", Term: second}).Write(t.Context(), checkpoint())
	var clone *fence.CloneError
	if !errors.As(err, &clone) || !fencedwriter.Stop(err) {
		t.Fatalf("a write of the second session: %v", err)
	}
	if err := second.Check(); !errors.Is(err, tenure.ErrResigned) {
		t.Fatalf("after a refused write the term is %v", err)
	}
	if _, err := fencedwriter.New(fencedwriter.Config{Ledger: l, Resource: "billing", Term: first}).Write(t.Context(), checkpoint()); err != nil {
		t.Fatalf("a write of the first session: %v", err)
	}
}

// After a refusal nothing more is sent, whether the end of the term was noticed or not, and
// no concurrent writer starts an attempt after a refused one has ended.
func TestRefusedSendsNothingMore(t *testing.T) {
	l := openLedger(t)
	old, _, _ := newTerm(1)
	var mu sync.Mutex
	var begun []clock.Instant
	told := clock.Never
	p := fencedwriter.New(fencedwriter.Config{
		Ledger: l, Resource: "billing", Term: old,
		Attempted: func(at clock.Instant, _ fence.Token, _ []ledgerapi.Write) {
			mu.Lock()
			defer mu.Unlock()
			begun = append(begun, at)
		},
		Done: func(at clock.Instant, took time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, fence.ErrRefused) {
				told = min(told, at.Add(took))
			}
		},
	})
	// WriteLast does not check the term, so only the writer itself can stop it.
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for range 1000 {
				_, err := p.WriteLast(context.Background(), checkpoint())
				switch {
				case errors.Is(err, fencedwriter.ErrClosed) && errors.Is(err, fence.ErrRefused):
					return
				case err != nil && !errors.Is(err, fence.ErrRefused):
					t.Error(err)
					return
				}
			}
			t.Error("it is never kept back")
		})
	}
	next, _, _ := newTerm(2)
	if err := l.Seal(t.Context(), "billing", next.Stamp(), "n2"); err != nil {
		t.Fatal(err)
	}
	writers.Wait()
	for _, at := range begun {
		if at > told {
			t.Errorf("an attempt began %v after the first refusal", at.Sub(told))
		}
	}
	sent := len(begun)
	if _, err := p.WriteLast(t.Context(), checkpoint()); !fencedwriter.Stop(err) || !errors.Is(err, fencedwriter.ErrClosed) || len(begun) != sent || told == clock.Never {
		t.Errorf("a write after a refusal: %v, %d sent of %d", err, len(begun), sent)
	}
}

// After the end of its term a leader sends nothing. WriteLast is allowed only if the leader
// ended the term itself.
func TestEnded(t *testing.T) {
	for _, tt := range []struct {
		cause error
		last  bool
	}{{tenure.ErrResigned, true}, {tenure.ErrTransferred, true}, {tenure.ErrUnhealthy, true}, {tenure.ErrExpired, false}, {tenure.ErrLost, false}} {
		t.Run(tt.cause.Error(), func(t *testing.T) {
			term, _, end := newTerm(1)
			sent := 0
			p := fencedwriter.New(fencedwriter.Config{Ledger: openLedger(t), Resource: "billing", Term: term, Attempted: func(clock.Instant, fence.Token, []ledgerapi.Write) { sent++ }})
			end(tt.cause)
			if _, err := p.Write(t.Context(), checkpoint()); !fencedwriter.Stop(err) || !errors.Is(err, tt.cause) || sent != 0 {
				t.Fatalf("a write: %v, %d sent", err, sent)
			}
			_, err := p.WriteLast(t.Context(), checkpoint())
			if (err == nil) != tt.last || (sent == 1) != tt.last {
				t.Fatalf("the last write: %v, %d sent", err, sent)
			}
		})
	}
}

// A write that was sent is not cancelled, neither by the caller's context nor by the end of
// the term.
func TestOutlives(t *testing.T) {
	term, _, end := newTerm(1)
	ctx, cancel := context.WithCancel(t.Context())
	p := fencedwriter.New(fencedwriter.Config{Ledger: openLedger(t), Resource: "billing", Term: term, Between: func() {
		cancel()
		end(tenure.ErrResigned)
	}})
	if _, err := p.Write(ctx, checkpoint()); err != nil {
		t.Fatal(err)
	}
}

// Close waits for all pending writes. After it only WriteLast writes.
func TestClose(t *testing.T) {
	term, _, _ := newTerm(1)
	begun, goOn := make(chan struct{}), make(chan struct{})
	p := fencedwriter.New(fencedwriter.Config{Ledger: openLedger(t), Resource: "billing", Term: term, Between: sync.OnceFunc(func() {
		close(begun)
		<-goOn
	})})
	made := make(chan error, 1)
	go func() {
		_, err := p.Write(context.Background(), checkpoint())
		made <- err
	}()
	<-begun
	closed := make(chan struct{})
	go func() {
		p.Close()
		close(closed)
	}()
	select {
	case <-closed:
		t.Fatal("closed while a write was under way")
	case <-time.After(20 * time.Millisecond):
	}
	close(goOn)
	if err := <-made; err != nil {
		t.Error(err)
	}
	<-closed
	if _, err := p.Write(t.Context(), checkpoint()); !errors.Is(err, fencedwriter.ErrClosed) || !fencedwriter.Stop(err) {
		t.Errorf("a write with a closed pen: %v", err)
	}
	if _, err := p.WriteLast(t.Context(), checkpoint()); err != nil {
		t.Errorf("the last write: %v", err)
	}
}

// Between is called between the check and the write: a leader that loses its trust there
// still writes, and the ledger refuses.
func TestBetween(t *testing.T) {
	l := openLedger(t)
	term, trust, _ := newTerm(1)
	next, _, _ := newTerm(2)
	var attempts []clock.Instant
	var paused clock.Instant
	p := fencedwriter.New(fencedwriter.Config{Ledger: l, Resource: "billing", Term: term,
		Between: func() {
			trust.Set(0)
			if err := l.Seal(context.Background(), "billing", next.Stamp(), "n2"); err != nil {
				t.Error(err)
			}
			paused = clock.System().Now()
		},
		Attempted: func(at clock.Instant, _ fence.Token, _ []ledgerapi.Write) { attempts = append(attempts, at) },
	})
	_, err := p.Write(t.Context(), checkpoint())
	if !errors.Is(err, fence.ErrRefused) {
		t.Fatalf("the write: %v", err)
	}
	if len(attempts) != 1 || attempts[0] < paused || attempts[0] != p.LastAttempt() {
		t.Fatalf("attempts %v, and the pause ended at %v", attempts, paused)
	}
}
