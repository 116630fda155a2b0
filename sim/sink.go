package sim

import (
	"errors"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
)

// sink is the target of a group's leaders: a fenced resource, an unfenced resource
// that gets the same writes, and a sequence.
type sink struct {
	w     *world
	group string
	down  bool

	mark    fence.Mark
	applied fence.Token // the highest token whose write took effect
	sealed  fence.Token // the highest sealed token
	seq     uint64
	lastAt  instant // of the last write that took effect
	lastBy  fence.Token

	unfenced fence.Token
	given    map[uint64]bool
	floor    uint64      // the highest number that a caller has got
	floorBy  fence.Token // the token of that caller

	slow     time.Duration
	full     bool
	backup   *sinkBackup
	advances bool // an operator is about to advance the mark
}

var errFull = errors.New("no space left on the device")

// receive delays a request while the sink is slow.
func (s *sink) receive(f func()) {
	if s.slow == 0 {
		f()
		return
	}
	s.w.after(s.w.between(0, s.slow), func() {
		if !s.down {
			f()
		}
	})
}

// answer is the answer to a writer.
type answer struct {
	err   error
	first uint64 // first number of the sequence
}

func (s *sink) stamp(t fence.Token) fence.Stamp {
	return fence.Stamp{Deployment: deployment, Group: s.group, Token: t}
}

// admit applies the fencing rule, or a planted bug.
func (s *sink) admit(t fence.Token) error {
	next, err := s.mark.Admit(s.stamp(t))
	switch {
	case s.w.cfg.Plant.Has(plant.NoFence):
		err = nil
	case err != nil && s.w.cfg.Plant.Has(plant.StoreRefused):
		s.mark.Token = max(s.mark.Token, t)
	case err == nil:
		s.mark = next
	}
	if err != nil {
		s.w.result.Refused++
	}
	s.slipped(err)
	return err
}

// operatorDelay bounds how long an operator needs to advance a mark.
const operatorDelay = 3 * time.Second

// slipped handles a slip: after two raised epochs in a row the sink refuses the token as
// implausible. An operator advances the mark after a while.
func (s *sink) slipped(err error) {
	var slip *fence.SlipError
	if !errors.As(err, &slip) || slip.Stamp.Token > s.w.store.grants[s.group].top || s.advances {
		return
	}
	s.advances = true
	s.w.after(s.w.between(0, operatorDelay), func() {
		s.advances = false
		s.w.count(slipAdvanced)
		s.advance(slip.Stamp.Token)
	})
}

func (s *sink) advance(to fence.Token) {
	if next, err := s.mark.Advance(s.stamp(to)); err == nil {
		s.mark = next
	}
}

func (s *sink) seal(t fence.Token) answer {
	if s.full {
		s.w.count(refusedFull)
		return answer{err: errFull}
	}
	if err := s.admit(t); err != nil {
		return answer{err: err}
	}
	s.sealed = max(s.sealed, t)
	return answer{}
}

// write applies a write, and takes n numbers of the sequence.
func (s *sink) write(t fence.Token, n uint64) answer {
	if t < s.unfenced {
		s.w.result.StaleUnfenced++
	}
	s.unfenced = max(s.unfenced, t)
	if s.full {
		s.w.count(refusedFull)
		return answer{err: errFull}
	}
	if err := s.admit(t); err != nil {
		return answer{err: err}
	}
	if s.w.cfg.Plant.Has(plant.CheckApart) {
		s.w.after(s.w.between(0, 30*time.Millisecond), func() { s.apply(t) })
	} else {
		s.apply(t)
	}
	a := answer{first: s.seq + 1}
	s.seq += n
	return a
}

func (s *sink) apply(t fence.Token) {
	if t < s.applied {
		s.w.result.StaleFenced++
		s.w.broken("G2", "the sink of %s applied token %d after token %d", s.group, t, s.applied)
	}
	if t > s.sealed {
		s.w.broken("G2", "the sink of %s applied token %d before it was sealed for it", s.group, t)
	}
	s.applied = max(s.applied, t)
	s.lastAt, s.lastBy = s.w.now, t
	s.w.result.Writes++
}

// handedOut checks G6 when a caller gets its number: it must be above every number
// that any caller had when this one asked.
func (s *sink) handedOut(t fence.Token, seq, floor uint64, floorBy fence.Token) {
	if seq <= floor {
		s.w.broken("G6", "the sequence of %s gave out %d, though %d had been given out when it was asked", s.group, seq, floor)
	}
	if s.given[seq] {
		s.w.broken("G6", "the sequence of %s gave out %d twice", s.group, seq)
	}
	s.given[seq] = true
	if t < floorBy {
		s.w.broken("G6", "the sequence of %s was answered with token %d after token %d", s.group, t, floorBy)
	}
	s.floor = max(s.floor, seq)
	s.floorBy = max(s.floorBy, t)
}

func (s *sink) restart(outage time.Duration) {
	s.down = true
	if s.w.cfg.Plant.Has(plant.MarkInMemory) {
		s.mark = fence.Mark{}
	}
	s.w.after(outage, func() { s.down = false })
}

// restore restores the backup. Before the sink accepts writes again, the operator raises
// the mark and the sequence to what is known elsewhere.
func (s *sink) restore(outage time.Duration) {
	s.restart(outage)
	last := s.seq
	s.mark, s.seq = s.backup.mark, s.backup.seq
	s.backup = nil
	if s.w.cfg.Plant.Has(plant.RestoreAsIs) {
		return
	}
	if top := s.w.store.grants[s.group].top; top > 0 {
		s.advance(top)
	}
	s.seq = last
}
