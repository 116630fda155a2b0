// Package sequencer hands out numbers that strictly increase for all callers, across every
// change of leader. Callers that arrive during a write share the next one. A caller is answered
// only after the ledger has acknowledged the write with its number. Nothing is reserved in
// advance, so a deposed leader has no numbers to hand out.
package sequencer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
)

// The errors besides those of the ledger. No number was taken.
var (
	// ErrStopped: this leader takes no more calls.
	ErrStopped = errors.New("sequencer: this leader takes no more calls, nothing was taken")
	// ErrBusy: too many callers wait.
	ErrBusy = errors.New("sequencer: too many calls are waiting, nothing was taken")
)

// Config is what a sequencer needs.
type Config struct {
	Writer fencedwriter.Writer
	// Name of the sequence in the ledger.
	Name string
	// Token is the leader's, for the answers.
	Token fence.Token
	// Last is the last number that was taken before this leader, read after the seal.
	Last uint64
	// Read reads Last again, after a write with an unknown outcome.
	Read func(ctx context.Context) (uint64, error)
	// Timeout bounds Read. Default 5s.
	Timeout time.Duration

	// Batch is the most callers that share a write; 1 commits each alone. Default 8192.
	Batch int
	// Waiting is how many callers may wait. Default 65536.
	Waiting int

	// Wrote, if set, is called after each write: how many callers shared it, how many numbers it
	// took, its duration.
	Wrote func(callers int, numbers uint64, took time.Duration, err error)
}

// Sequencer hands out the numbers of one term.
//
// Q1: at most one write is under way.
// Q2: a caller is answered with numbers only after the write that names them was
// acknowledged, and that write began after the caller arrived.
type Sequencer struct {
	cfg  Config
	wake chan struct{}

	mu      sync.Mutex
	queue   []*batch
	waiting int
	stopped error
	last    uint64

	// Run's own.
	unsure bool // the outcome of a write is unknown: last must be read again
}

// batch is callers that share a write. They read it after done is closed.
type batch struct {
	done    chan struct{}
	callers int
	numbers uint64
	first   uint64
	err     error
}

// New returns a sequencer. Run runs it.
func New(cfg Config) *Sequencer {
	cfg.Batch, cfg.Waiting, cfg.Timeout = cmp.Or(cfg.Batch, 8192), cmp.Or(cfg.Waiting, 65536), cmp.Or(cfg.Timeout, 5*time.Second)
	return &Sequencer{cfg: cfg, wake: make(chan struct{}, 1), last: cfg.Last}
}

// Token is the token of the term.
func (s *Sequencer) Token() fence.Token { return s.cfg.Token }

// Last is the last number that was taken, as far as this leader knows.
func (s *Sequencer) Last() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Next takes n numbers, from the returned one on. It waits for the outcome of the write, which
// has a timeout; a caller that left early would not undo it. n is from 1 to ledgerapi.MaxRange.
func (s *Sequencer) Next(n uint64) (first uint64, err error) {
	s.mu.Lock()
	switch {
	case s.stopped != nil:
		s.mu.Unlock()
		return 0, s.stopped
	case n < 1 || n > ledgerapi.MaxRange:
		s.mu.Unlock()
		return 0, &ledgerapi.RequestError{Field: "n", Value: fmt.Sprint(n), Rule: fmt.Sprintf("from 1 to %d", ledgerapi.MaxRange)}
	case s.waiting >= s.cfg.Waiting:
		s.mu.Unlock()
		return 0, ErrBusy
	}
	var b *batch
	if k := len(s.queue); k > 0 {
		b = s.queue[k-1]
	}
	if b == nil || b.callers >= s.cfg.Batch || b.numbers+n > ledgerapi.MaxRange {
		b = &batch{done: make(chan struct{})}
		s.queue = append(s.queue, b)
	}
	offset := b.numbers
	b.numbers += n
	b.callers++
	s.waiting++
	alone := s.waiting == 1
	s.mu.Unlock()
	if alone {
		// Later callers need not wake Run again.
		wait.Signal(s.wake)
	}
	<-b.done
	if b.err != nil {
		return 0, b.err
	}
	return b.first + offset, nil
}

// Run writes until ctx ends or no further write can succeed. Then waiting callers get
// ErrStopped. It returns after the last write has its outcome, with the error that stopped it,
// if any.
func (s *Sequencer) Run(ctx context.Context) error {
	for {
		b := s.take()
		if b == nil {
			select {
			case <-s.wake:
				// Callers that are about to arrive may share the write.
				runtime.Gosched()
				continue
			case <-ctx.Done():
				s.stop(ErrStopped)
				return nil
			}
		}
		if ctx.Err() != nil {
			s.finish(b, 0, ErrStopped)
			s.stop(ErrStopped)
			return nil
		}
		if err := s.commit(ctx, b); fencedwriter.Stop(err) {
			s.stop(fmt.Errorf("%w: %w", ErrStopped, err))
			return err
		}
	}
}

// take returns the oldest batch. Nobody joins it after that.
func (s *Sequencer) take() *batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return nil
	}
	b := s.queue[0]
	s.queue[0] = nil
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil
	}
	s.waiting -= b.callers
	return b
}

func (s *Sequencer) stop(why error) {
	s.mu.Lock()
	left := s.queue
	s.queue, s.waiting, s.stopped = nil, 0, why
	s.mu.Unlock()
	for _, b := range left {
		s.finish(b, 0, why)
	}
}

func (s *Sequencer) finish(b *batch, first uint64, err error) {
	b.first, b.err = first, err
	close(b.done)
}

// commit writes one batch and answers its callers.
func (s *Sequencer) commit(ctx context.Context, b *batch) error {
	began := time.Now()
	first, err := s.propose(ctx, b.numbers)
	var moved *ledgerapi.SequenceError
	switch {
	case !errors.As(err, &moved) || moved.LastSeq >= ledgerapi.MaxSequence:
	case moved.LastSeq < s.last:
		err = wentBack(s.cfg.Name, s.last, moved.LastSeq)
	default:
		// A write of this leader that seemed lost was made after all. Nothing was taken now, so retry
		// for these callers.
		s.raiseLast(moved.LastSeq)
		first, err = s.propose(ctx, b.numbers)
	}
	if s.cfg.Wrote != nil {
		s.cfg.Wrote(b.callers, b.numbers, time.Since(began), err)
	}
	if errors.Is(err, ledgerapi.ErrUnknown) {
		s.unsure = true
	}
	s.finish(b, first, err)
	return err
}

func (s *Sequencer) propose(ctx context.Context, n uint64) (first uint64, err error) {
	if s.unsure {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
		last, err := s.cfg.Read(rctx)
		cancel()
		if err != nil {
			// Nothing was sent, so the outcome is known, whatever the error of the read.
			return 0, fmt.Errorf("%w: cannot read the sequence: %s", ledgerapi.ErrUnavailable, err.Error())
		}
		if last < s.last {
			return 0, wentBack(s.cfg.Name, s.last, last)
		}
		s.raiseLast(last)
		s.unsure = false
	}
	first = s.last + 1
	_, err = s.cfg.Writer.Write(ctx, ledgerapi.Write{Sequence: &ledgerapi.SequenceWrite{Name: s.cfg.Name, First: first, Last: s.last + n}})
	if err != nil {
		return 0, err
	}
	s.raiseLast(s.last + n)
	return first, nil
}

func wentBack(name string, from, to uint64) error {
	return fmt.Errorf("%w: sequence %q went back from %d to %d", ledgerapi.ErrDataLost, name, from, to)
}

// raiseLast raises s.last. Only Run changes it, so Run reads it without the lock.
func (s *Sequencer) raiseLast(last uint64) {
	s.mu.Lock()
	s.last = max(s.last, last)
	s.mu.Unlock()
}
