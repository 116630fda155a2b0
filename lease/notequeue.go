package lease

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// noteQueue delivers notes in a goroutine of its own, so that a log that blocks
// cannot delay the end of a term.
type noteQueue struct {
	c       chan Note
	dropped atomic.Int64
}

const maxNotes = 1024

// write delivers the notes until the channel is closed.
func (b *noteQueue) write(cfg *Config) {
	for n := range b.c {
		if cfg.OnNote != nil {
			cfg.OnNote(n)
		}
		n.log(cfg)
		if dropped := b.dropped.Swap(0); dropped > 0 {
			cfg.Log.Warn("tenure: notes dropped, the log is too slow", "count", dropped)
		}
	}
}

func (b *noteQueue) add(n Note) {
	select {
	case b.c <- n:
	default:
		b.dropped.Add(1)
	}
}

func (n Note) log(cfg *Config) {
	level := slog.LevelDebug
	switch n.Kind {
	case NoteBegan, NoteEnded, NoteReleased, NoteAsked:
		level = slog.LevelInfo
	case NoteMissed:
		if n.Silent >= time.Duration(cfg.Misses)*cfg.Beat {
			level = slog.LevelWarn
		}
	case NoteOpenFailed, NoteWatchLost, NoteFailed:
		level = slog.LevelWarn
	case NoteOverrun:
		level = slog.LevelError
	}
	attrs := []any{"candidate", cfg.Candidate.ID}
	add := func(key string, value any, is bool) {
		if is {
			attrs = append(attrs, key, value)
		}
	}
	add("group", n.Group, n.Group != "")
	add("token", n.Token, n.Token != 0)
	add("session", string(n.Session), n.Session != "")
	add("call", n.Call, n.Call != "")
	add("count", n.Count, n.Count != 0)
	add("took", n.Took, n.Took != 0)
	add("silent", n.Silent, n.Silent != 0)
	add("detail", n.Detail, n.Detail != "")
	add("error", n.Err, n.Err != nil)
	cfg.Log.Log(context.Background(), level, "tenure: "+string(n.Kind), attrs...)
}
