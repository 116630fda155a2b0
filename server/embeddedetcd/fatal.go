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

// fatal catches the errors for which etcd would end the process: Fatal and Panic of its
// log. The goroutine that called ends, so it acknowledges nothing more.
type fatal struct {
	once sync.Once
	done chan struct{}
	err  error // set before done is closed
}

func newFatal() *fatal { return &fatal{done: make(chan struct{})} }

func (f *fatal) set(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.done)
	})
}

// OnWrite is called by zap for entries at Panic and Fatal, even if they are not logged.
func (f *fatal) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(e.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", e.Message, cause)
		}
	}
	f.set(err)
	runtime.Goexit()
}

// logger returns etcd's logger. It logs nothing unless debug is set.
func (f *fatal) logger(to *slog.Logger, debug bool) *zap.Logger {
	core := zapcore.NewNopCore()
	if debug {
		core = slogCore{to}
	}
	return zap.New(core, zap.WithFatalHook(f), zap.WithPanicHook(f))
}

// slogCore passes zap's entries to slog.
type slogCore struct{ to *slog.Logger }

// level converts a level: both count from 0 for Info, zap in steps of 1 and slog of 4.
func level(l zapcore.Level) slog.Level { return min(4*slog.Level(l), slog.LevelError) }

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
