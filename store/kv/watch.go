package kv

import (
	"context"
	"iter"

	"github.com/tenurehq/tenure/store"
)

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, scope store.Scope) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		wake := make(chan struct{}, 1)
		sub, err := s.Subscribe(ctx, scope, func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		})
		if err != nil {
			yield(store.Update{}, err)
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
				yield(store.Update{}, err)
				return
			}
			select {
			case <-wake:
			case <-ctx.Done():
				yield(store.Update{}, context.Cause(ctx))
				return
			}
		}
	}
}
