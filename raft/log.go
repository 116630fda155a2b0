package raft

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// logSink logs the lines of hashicorp/raft one level lower: an unreachable peer is an error
// to that library, but ordinary in a fleet.
type logSink struct{ log *slog.Logger }

func (s *logSink) logger(name string) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: name, Level: hclog.Off, Output: io.Discard})
	l.RegisterSink(s)
	return l
}

// Accept implements hclog.SinkAdapter.
func (s *logSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch level {
	case hclog.Error:
		to = slog.LevelWarn
	case hclog.Warn:
		to = slog.LevelInfo
	}
	if ctx := context.Background(); s.log.Enabled(ctx, to) {
		s.log.Log(ctx, to, name+": "+msg, args...)
	}
}
