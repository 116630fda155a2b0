package kv

import "context"

// Sweep sweeps up now what dead sessions left behind.
func (s *Store) Sweep(ctx context.Context) error { return s.feed.sweep(ctx) }
