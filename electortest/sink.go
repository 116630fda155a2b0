package electortest

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
)

// sink is a fenced sink in memory.
type sink struct {
	mu   sync.Mutex
	mark fence.Mark
}

func (s *sink) Seal(_ context.Context, stamp fence.Stamp) error { return s.write(stamp) }

func (s *sink) write(stamp fence.Stamp) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark, err = s.mark.Admit(stamp)
	return err
}

// sealer is a sink with this Seal function.
type sealer func(context.Context, fence.Stamp) error

func (f sealer) Seal(ctx context.Context, s fence.Stamp) error { return f(ctx, s) }

// silent discards Lead's warnings.
func silent() tenure.Option { return tenure.WithLog(slog.New(slog.DiscardHandler)) }

// logCollector collects the log of Lead.
type logCollector struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logCollector) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logCollector) says(what string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), what)
}

func (l *logCollector) option() tenure.Option {
	return tenure.WithLog(slog.New(slog.NewTextHandler(l, nil)))
}
