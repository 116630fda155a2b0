package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurehq/tenure/reference/api"
)

// The handlers that an order can name. None of them runs a command.
const (
	RunCount = "count" // counts, by the order's name
	RunLog   = "log"   // writes a line to the log: payload {"message": "…"}
	RunSleep = "sleep" // sleeps: payload {"ms": 100}
)

const (
	maxSleep   = time.Hour
	maxMessage = 200
	maxCounts  = 10_000
)

// payload is what the handlers read of a payload.
type payload struct {
	Message string `json:"message"`
	MS      int64  `json:"ms"`
}

func payloadOf(o api.Order) (p payload, err error) {
	if len(o.Payload) == 0 || o.Run == RunCount {
		return p, nil
	}
	if err := json.Unmarshal(o.Payload, &p); err != nil {
		return p, errors.New(`the payload must be an object, with "message" or "ms" in it`)
	}
	if p.MS < 0 || p.MS > maxSleep.Milliseconds() {
		return p, fmt.Errorf("ms %d: from 0 to %d", p.MS, maxSleep.Milliseconds())
	}
	return p, nil
}

// counts are in memory only. They show that orders are acted on.
type counts struct {
	mu sync.Mutex
	by map[string]uint64
}

func (c *counts) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.by[name]; !known && len(c.by) >= maxCounts {
		name = "(others)"
	}
	c.by[name]++
}

func (w *worker) act(ctx context.Context, o api.Order) error {
	p, err := payloadOf(o)
	if err != nil {
		return err
	}
	switch o.Run {
	case RunCount:
		w.counts.add(o.Name)
	case RunLog:
		if len(p.Message) > maxMessage {
			p.Message = p.Message[:maxMessage]
		}
		w.cfg.Log.Info("order", "name", o.Name, "job", o.Job, "at_ms", o.AtMS, "message", p.Message)
	case RunSleep:
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(p.MS) * time.Millisecond):
		}
	default:
		return fmt.Errorf("there is no handler %q", o.Run)
	}
	return nil
}
