package sequencer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tenurehq/tenure/fence"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// fakeSequence is a ledger's sequence: it accepts a range that follows the last number. do decides
// the outcome of a write: it may refuse, lose or delay it.
type fakeSequence struct {
	mu     sync.Mutex
	last   uint64
	writes []ledgerapi.SequenceWrite
	reads  int
	do     func(nth int, land func() error) error
}

func (b *fakeSequence) Write(_ context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	w := *writes[0].Sequence
	b.mu.Lock()
	b.writes = append(b.writes, w)
	nth := len(b.writes)
	b.mu.Unlock()
	land := func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if w.First != b.last+1 {
			return &ledgerapi.SequenceError{Name: w.Name, First: w.First, LastSeq: b.last}
		}
		b.last = w.Last
		return nil
	}
	if b.do != nil {
		return ledgerapi.Answer{}, b.do(nth, land)
	}
	return ledgerapi.Answer{}, land()
}

func (b *fakeSequence) read(context.Context) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	return b.last, nil
}

// started returns a sequencer that runs until the test stops it.
func started(t *testing.T, b *fakeSequence, change func(*Config)) (s *Sequencer, stop func() error) {
	t.Helper()
	cfg := Config{Writer: b, Name: "next", Token: 7, Last: b.last, Read: b.read}
	if change != nil {
		change(&cfg)
	}
	s = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, func() error { cancel(); return <-ended }
}

type taken struct {
	first uint64
	err   error
}

func call(s *Sequencer, n uint64) <-chan taken {
	c := make(chan taken, 1)
	go func() {
		first, err := s.Next(n)
		c <- taken{first, err}
	}()
	return c
}

// Callers that arrive during a write share the next one, each gets its own numbers, and
// nobody is answered before the write was acknowledged.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		b := &fakeSequence{last: 41, do: func(_ int, land func() error) error { <-gate; return land() }}
		s, stop := started(t, b, nil)
		first := call(s, 1)
		synctest.Wait()
		var others []<-chan taken
		for range 10 {
			others = append(others, call(s, 3))
		}
		synctest.Wait()
		select {
		case a := <-first:
			t.Fatalf("answered before the write was: %v", a)
		default:
		}
		gate <- struct{}{}
		if a := <-first; a.err != nil || a.first != 42 {
			t.Fatalf("the first: %v", a)
		}
		synctest.Wait()
		for _, c := range others {
			if len(c) > 0 {
				t.Fatalf("answered before the second write was: %v", <-c)
			}
		}
		gate <- struct{}{}
		var got []uint64
		for _, c := range others {
			a := <-c
			if a.err != nil {
				t.Fatal(a.err)
			}
			got = append(got, a.first)
		}
		slices.Sort(got)
		for i, first := range got {
			if want := uint64(43 + 3*i); first != want {
				t.Fatalf("numbers from %v, want one at %d", got, want)
			}
		}
		if len(b.writes) != 2 || b.last != 72 || s.Last() != 72 {
			t.Fatalf("%d writes up to %d", len(b.writes), b.last)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// An unknown outcome is reported as unknown, and its numbers are not handed out again,
// whether the write is made at once, later or never.
func TestUnknown(t *testing.T) {
	for _, when := range []string{"landed", "lost", "lands later"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var late func() error
				b := &fakeSequence{do: func(nth int, land func() error) error {
					switch {
					case nth == 1 && when == "landed":
						_ = land()
						return ledgerapi.ErrUnknown
					case nth == 1:
						late = land
						return fmt.Errorf("%w: no answer", ledgerapi.ErrUnknown)
					case nth == 2 && when == "lands later":
						// After the sequence was read again, and before the next write.
						_ = late()
					}
					return land()
				}}
				s, stop := started(t, b, nil)
				if a := <-call(s, 2); !errors.Is(a.err, ledgerapi.ErrUnknown) {
					t.Fatalf("the outcome is unknown, the caller got %v", a)
				}
				want := map[string]uint64{"landed": 3, "lost": 1, "lands later": 3}[when]
				if a := <-call(s, 1); a.err != nil || a.first != want {
					t.Fatalf("after it: %v, want %d", a, want)
				}
				if b.reads != 1 {
					t.Errorf("the sequence was read %d times", b.reads)
				}
				if err := stop(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// When it stops, the pending write is finished and its callers are answered. Waiting and
// later callers learn that nothing was taken.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		b := &fakeSequence{do: func(_ int, land func() error) error { <-gate; return land() }}
		s, stop := started(t, b, func(c *Config) { c.Batch = 1 })
		first := call(s, 1)
		synctest.Wait()
		waiting := []<-chan taken{call(s, 1), call(s, 1)}
		synctest.Wait()
		ended := make(chan error)
		go func() { ended <- stop() }()
		synctest.Wait()
		gate <- struct{}{}
		if a := <-first; a.err != nil || a.first != 1 {
			t.Fatalf("the write under way: %v", a)
		}
		for _, c := range waiting {
			if a := <-c; !errors.Is(a.err, ErrStopped) {
				t.Fatalf("a caller that waited: %v", a)
			}
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if a := <-call(s, 1); !errors.Is(a.err, ErrStopped) {
			t.Fatalf("a caller after the end: %v", a)
		}
		if len(b.writes) != 1 {
			t.Fatalf("%d writes", len(b.writes))
		}
	})
}

// A leader that is refused hands out no more numbers, and returns why it stopped.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeSequence{do: func(int, func() error) error { return &fence.StaleError{} }}
		s, stop := started(t, b, nil)
		if a := <-call(s, 1); !errors.Is(a.err, fence.ErrRefused) {
			t.Fatalf("a refused caller: %v", a)
		}
		if a := <-call(s, 1); !errors.Is(a.err, ErrStopped) {
			t.Fatalf("the next: %v", a)
		}
		if err := stop(); !errors.Is(err, fence.ErrRefused) {
			t.Fatalf("it ended with %v", err)
		}
	})
}

// A write that certainly was not made is retried with the next caller, with the same number.
func TestUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeSequence{do: func(nth int, land func() error) error {
			if nth == 1 {
				return ledgerapi.ErrUnavailable
			}
			return land()
		}}
		s, stop := started(t, b, nil)
		if a := <-call(s, 1); !errors.Is(a.err, ledgerapi.ErrUnavailable) {
			t.Fatal(a)
		}
		if a := <-call(s, 1); a.err != nil || a.first != 1 {
			t.Fatal(a)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// Limits: numbers of a call and of a write, callers of a write, and waiting callers.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		b := &fakeSequence{do: func(_ int, land func() error) error { <-gate; return land() }}
		s, stop := started(t, b, func(c *Config) { c.Batch, c.Waiting = 2, 5 })
		var request *ledgerapi.RequestError
		for _, n := range []uint64{0, ledgerapi.MaxRange + 1} {
			if _, err := s.Next(n); !errors.As(err, &request) {
				t.Errorf("%d numbers: %v", n, err)
			}
		}
		calls := []<-chan taken{call(s, 1)}
		synctest.Wait()
		for _, n := range []uint64{1, 1, 1, ledgerapi.MaxRange, 1} {
			calls = append(calls, call(s, n))
			synctest.Wait()
		}
		if a := <-call(s, 1); !errors.Is(a.err, ErrBusy) {
			t.Errorf("one too many: %v", a)
		}
		go func() {
			for range 5 {
				gate <- struct{}{}
			}
		}()
		for _, c := range calls {
			if a := <-c; a.err != nil {
				t.Error(a.err)
			}
		}
		var sizes []uint64
		for _, w := range b.writes {
			sizes = append(sizes, w.Last-w.First+1)
		}
		if want := []uint64{1, 2, 1, ledgerapi.MaxRange, 1}; !slices.Equal(sizes, want) {
			t.Errorf("writes of %v, want %v", sizes, want)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}
