package worker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tenurehq/tenure/reference/api"
)

// standing is a standing order that runs.
type standing struct {
	body string
	stop context.CancelFunc
	gone chan struct{}

	// Guarded by the worker's lock.
	order  api.Order
	runs   uint64
	failed uint64
	lastMS int64
}

// command runs the standing orders that are on disk. It does not interrupt orders that have
// not changed.
func (w *worker) command(ctx context.Context) error {
	orders, err := w.store.standing(ctx)
	if err != nil {
		return err
	}
	wanted := make(map[string]string, len(orders))
	for _, o := range orders {
		body, err := json.Marshal(o)
		if err != nil {
			return err
		}
		wanted[o.Name] = string(body)
	}
	w.mu.Lock()
	var ended []*standing
	for name, s := range w.standing {
		if wanted[name] != s.body {
			s.stop()
			ended = append(ended, s)
			delete(w.standing, name)
		}
	}
	w.mu.Unlock()
	for _, s := range ended {
		<-s.gone // an order must not run beside the one that replaces it
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range orders {
		if w.standing[o.Name] != nil || ctx.Err() != nil {
			continue
		}
		own, stop := context.WithCancel(ctx)
		s := &standing{body: wanted[o.Name], stop: stop, gone: make(chan struct{}), order: o}
		w.standing[o.Name] = s
		w.orders.Go(func() {
			defer close(s.gone)
			defer stop()
			w.stand(own, s)
		})
	}
	return nil
}

// stand runs a standing order at its interval. A run that takes longer is not made up for.
func (w *worker) stand(ctx context.Context, s *standing) {
	ticker := time.NewTicker(time.Duration(s.order.EveryMS) * time.Millisecond)
	defer ticker.Stop()
	for {
		err := w.run(ctx, []byte(s.body), "standing")
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			w.cfg.Log.Warn("a standing order failed", "name", s.order.Name, "error", err)
		}
		w.mu.Lock()
		s.runs++
		s.lastMS = time.Now().UnixMilli()
		if err != nil {
			s.failed++
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (w *worker) stopStanding() {
	w.commands.Lock()
	defer w.commands.Unlock()
	w.mu.Lock()
	for _, s := range w.standing {
		s.stop()
	}
	w.mu.Unlock()
	w.orders.Wait()
}
