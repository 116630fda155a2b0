package tenuretest

import (
	"context"
	"slices"
	"sync"

	"github.com/tenurehq/tenure/fence"
)

var _ fence.Sealer = (*Sink)(nil)

// Sink is a fenced sink in memory that records what it was asked to write, and by whom. The
// zero value has seen no stamp. One Sink belongs to one group. Its methods are safe for
// concurrent use.
type Sink struct {
	mu      sync.Mutex
	mark    fence.Mark
	broken  error
	writes  []Write
	refused []Write
}

// Write is a write that a Sink was asked to make.
type Write struct {
	Stamp fence.Stamp
	Value any
	Err   error // why it was refused
}

// Write writes value, unless a newer leader has written or sealed. The check and the write
// are one step.
func (s *Sink) Write(ctx context.Context, stamp fence.Stamp, value any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.admit(ctx, stamp)
	w := Write{Stamp: stamp, Value: value, Err: err}
	if err != nil {
		s.refused = append(s.refused, w)
		return err
	}
	s.writes = append(s.writes, w)
	return nil
}

// Seal makes the sink refuse all tokens below the stamp's.
func (s *Sink) Seal(ctx context.Context, stamp fence.Stamp) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.admit(ctx, stamp)
}

func (s *Sink) admit(ctx context.Context, stamp fence.Stamp) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if s.broken != nil {
		return s.broken
	}
	mark, err := s.mark.Admit(stamp)
	s.mark = mark
	return err
}

// Break makes every write and seal fail with err, until it is called with nil.
func (s *Sink) Break(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = err
}

// Mark returns the highest token and its owner.
func (s *Sink) Mark() fence.Mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mark
}

// Writes returns what was written, in order.
func (s *Sink) Writes() []Write {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

// Refused returns the writes that were not made, in order, each with the reason.
func (s *Sink) Refused() []Write {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refused)
}
