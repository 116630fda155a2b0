package kv

import "context"

// Sweep deletes the keys of dead sessions now.
func (s *Store) Sweep(ctx context.Context) error { return s.feed.sweep(ctx) }
