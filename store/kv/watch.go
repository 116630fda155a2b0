package kv

import (
	"context"
	"iter"

	"github.com/tenurehq/tenure/lease"
)

// Watch implements lease.Store.
func (s *Store) Watch(ctx context.Context, scope lease.Scope) iter.Seq2[lease.Update, error] {
	return func(yield func(lease.Update, error) bool) {
		wake := make(chan struct{}, 1)
		sub, err := s.Subscribe(ctx, scope, func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		})
		if err != nil {
			yield(lease.Update{}, err)
			return
		}
		defer sub.Close()
		for {
			updates, err := sub.Take()
			for _, u := range updates {
				if !yield(u, nil) {
					return
				}
			}
			if err != nil {
				yield(lease.Update{}, err)
				return
			}
			select {
			case <-wake:
			case <-ctx.Done():
				yield(lease.Update{}, context.Cause(ctx))
				return
			}
		}
	}
}
