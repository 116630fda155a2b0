package supervise

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// dedupFor is how long a repeated log line is suppressed.
const dedupFor = time.Minute

// dedup suppresses repeated log lines. A candidate that may not lead would otherwise log
// the same error for days.
type dedup struct {
	slog.Handler
	last *lastLine
}

type lastLine struct {
	mu   sync.Mutex
	text string
	at   time.Time
}

func dedupLogger(log *slog.Logger) *slog.Logger {
	if log == nil {
		log = slog.Default()
	}
	return slog.New(dedup{log.Handler(), &lastLine{}})
}

// Handle implements slog.Handler. Lines are equal if message, error and call are.
func (d dedup) Handle(ctx context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" || a.Key == "call" {
			text += " " + a.Value.String()
		}
		return true
	})
	d.last.mu.Lock()
	repeated := text == d.last.text && r.Time.Sub(d.last.at) < dedupFor
	if !repeated {
		d.last.text, d.last.at = text, r.Time
	}
	d.last.mu.Unlock()
	if repeated {
		return nil
	}
	return d.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (d dedup) WithAttrs(attrs []slog.Attr) slog.Handler {
	return dedup{d.Handler.WithAttrs(attrs), d.last}
}

// WithGroup implements slog.Handler.
func (d dedup) WithGroup(name string) slog.Handler { return dedup{d.Handler.WithGroup(name), d.last} }
