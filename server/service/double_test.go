package service

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// countingStore counts calls. While it is down, its calls get no answer and end with their
// context, as with an engine without a quorum.
type countingStore struct {
	store.Store
	beats, reads, watches atomic.Int64
	down                  atomic.Bool
	newer                 atomic.Bool  // its records have a newer format
	slow                  atomic.Int64 // how long a read takes, in ns
}

func (s *countingStore) out(ctx context.Context) error {
	if s.down.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if s.newer.Load() {
		return fmt.Errorf("key x: %w", store.ErrNewer)
	}
	return nil
}

func (s *countingStore) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	s.beats.Add(1)
	if err := s.out(ctx); err != nil {
		return store.Beat{}, err
	}
	return s.Store.KeepAlive(ctx, id, groups...)
}

func (s *countingStore) Read(ctx context.Context, group string) (store.View, error) {
	s.reads.Add(1)
	if err := s.out(ctx); err != nil {
		return store.View{}, err
	}
	if d := time.Duration(s.slow.Load()); d > 0 {
		time.Sleep(d)
	}
	return s.Store.Read(ctx, group)
}

func (s *countingStore) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	if err := s.out(ctx); err != nil {
		return store.Session{}, err
	}
	return s.Store.Open(ctx, c, ttl, o)
}

func (s *countingStore) Attributes(ctx context.Context, name string) (store.Attributes, error) {
	if err := s.out(ctx); err != nil {
		return store.Attributes{}, err
	}
	return s.Store.Attributes(ctx, name)
}

func (s *countingStore) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	s.watches.Add(1)
	return s.Store.Watch(ctx, scope)
}

func decode[T any](t testing.TB, r reply) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Errorf("%v: %v", r, err)
	}
	return v
}

func sessionOf(t testing.TB, in *instance, text string) store.SessionID {
	t.Helper()
	h, err := in.svc.parseHandle(text)
	if err != nil {
		t.Fatal(err)
	}
	return h.session
}

func contains(text, part string) bool { return strings.Contains(text, part) }

func grep(text, part string) string {
	var found []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}

// lateStore calls a function just before the first Acquire.
type lateStore struct {
	store.Store
	once   sync.Once
	before func()
}

func (s *lateStore) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	s.once.Do(s.before)
	return s.Store.Acquire(ctx, id, seen...)
}
