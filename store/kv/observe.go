package kv

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// silence measures how long a session has not been renewed, by this process's clock.
//
// It starts when this process receives a read of the beat, which is after the owner wrote the
// beat. So the owner's TTL started earlier. The session is ended by compare-and-set from the
// silent version, which fails if the owner has renewed since.
type silence struct {
	version uint64
	ttl     time.Duration
	quiet   time.Duration // silence so far
	last    clock.Instant // when the beat was last read
}

// observe notes the version of a session's beat, in stores without native expiry.
func (s *Store) observe(id store.SessionID, version uint64, ttl time.Duration) {
	if s.leaser != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Clock.Now()
	if s.cfg.plant.Has(plant.SilenceFromSending) {
		now = s.sentAt
	}
	q := s.silences[id]
	if q == nil || version != q.version { // an older one if the engine lost keep-alives
		s.silences[id] = &silence{version: version, ttl: ttl, last: now}
		return
	}
	// While the engine could not be read, owners could not renew either. This time does not
	// count: otherwise every session would end after an outage.
	if gap := now.Sub(q.last); gap <= ttl/2 || s.cfg.plant.Has(plant.GapCounted) {
		q.quiet += gap
	}
	q.last = now
}

// sends returns when a read is sent; for a planted bug.
func (s *Store) sends() clock.Instant {
	if s.cfg.plant.Has(plant.SilenceFromSending) {
		return s.cfg.Clock.Now()
	}
	return 0
}

// readSent notes when the last read was sent; for a planted bug.
func (s *Store) readSent(at clock.Instant) {
	if s.cfg.plant.Has(plant.SilenceFromSending) {
		s.mu.Lock()
		s.sentAt = at
		s.mu.Unlock()
	}
}

// silent lists the sessions that have been silent for their TTL.
func (s *Store) silent() map[store.SessionID]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	over := map[store.SessionID]uint64{}
	for id, q := range s.silences {
		limit := q.ttl + time.Duration(s.cfg.Drift*float64(q.ttl))
		if s.cfg.plant.Has(plant.ExpireEarly) {
			limit /= 2
		}
		if q.quiet >= limit {
			over[id] = q.version
		}
	}
	return over
}

// due returns those of the sessions whose beat should be read again.
func (s *Store) due(ids []store.SessionID) []store.SessionID {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Clock.Now()
	var due []store.SessionID
	for _, id := range ids {
		if q := s.silences[id]; q == nil || now.Sub(q.last) >= q.ttl/store.Observations {
			due = append(due, id)
		}
	}
	return due
}

// expire ends the sessions that have been silent for their TTL.
func (s *Store) expire(ctx context.Context) error {
	silent := s.silent()
	for _, id := range slices.Sorted(maps.Keys(silent)) {
		version := silent[id]
		if s.cfg.plant.Has(plant.ExpireUncompared) {
			version = Any
		}
		d, err := s.describe(ctx, id)
		if err == nil {
			err = s.end(ctx, d, version, store.Expired, nil)
		}
		if err != nil && !errors.Is(err, errBeat) && !errors.Is(err, store.ErrSessionDead) {
			return err
		}
		s.mu.Lock()
		delete(s.silences, id) // ended, or renewed meanwhile
		s.mu.Unlock()
	}
	return nil
}
