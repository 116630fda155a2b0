package supervise

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// calmFor is how long the same is not said again.
const calmFor = time.Minute

// calm passes on what is new, and the same again once in a while: whoever stands in line
// for days and may not lead would fill its log with one sentence.
type calm struct {
	slog.Handler
	last *lastSaid
}

type lastSaid struct {
	mu   sync.Mutex
	what string
	at   time.Time
}

func calmly(log *slog.Logger) *slog.Logger {
	if log == nil {
		log = slog.Default()
	}
	return slog.New(calm{log.Handler(), &lastSaid{}})
}

// Handle implements slog.Handler.
func (c calm) Handle(ctx context.Context, r slog.Record) error {
	what := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" || a.Key == "call" {
			what += " " + a.Value.String()
		}
		return true
	})
	c.last.mu.Lock()
	again := what == c.last.what && r.Time.Sub(c.last.at) < calmFor
	if !again {
		c.last.what, c.last.at = what, r.Time
	}
	c.last.mu.Unlock()
	if again {
		return nil
	}
	return c.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (c calm) WithAttrs(attrs []slog.Attr) slog.Handler {
	return calm{c.Handler.WithAttrs(attrs), c.last}
}

// WithGroup implements slog.Handler.
func (c calm) WithGroup(name string) slog.Handler { return calm{c.Handler.WithGroup(name), c.last} }
