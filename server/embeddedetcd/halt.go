package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// halt catches what etcd would end the process for: its log's Fatal and Panic.
// The goroutine that called ends, as it expects to; nothing that it was about to
// acknowledge is acknowledged.
type halt struct {
	once   sync.Once
	halted chan struct{}
	err    error // set before halted is closed
}

func newHalt() *halt { return &halt{halted: make(chan struct{})} }

func (h *halt) set(err error) {
	h.once.Do(func() {
		h.err = err
		close(h.halted)
	})
}

// OnWrite is called by zap for entries at Panic and Fatal, whether or not they
// are logged.
func (h *halt) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(e.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", e.Message, cause)
		}
	}
	h.set(err)
	runtime.Goexit()
}

// logger is etcd's: silent unless debug.
func (h *halt) logger(to *slog.Logger, debug bool) *zap.Logger {
	core := zapcore.NewNopCore()
	if debug {
		core = slogCore{to}
	}
	return zap.New(core, zap.WithFatalHook(h), zap.WithPanicHook(h))
}

// slogCore passes zap's entries on to slog.
type slogCore struct{ to *slog.Logger }

func level(l zapcore.Level) slog.Level {
	switch {
	case l < zapcore.InfoLevel:
		return slog.LevelDebug
	case l == zapcore.InfoLevel:
		return slog.LevelInfo
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	default:
		return slog.LevelError
	}
}

func attributes(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	var attrs []any
	for _, key := range slices.Sorted(maps.Keys(enc.Fields)) {
		attrs = append(attrs, slog.Any(key, enc.Fields[key]))
	}
	return attrs
}

func (c slogCore) Enabled(l zapcore.Level) bool {
	return c.to.Enabled(context.Background(), level(l))
}

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{c.to.With(attributes(fields)...)}
}

func (c slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.to.Log(context.Background(), level(e.Level), "etcd: "+e.Message, attributes(fields)...)
	return nil
}

func (c slogCore) Sync() error { return nil }
