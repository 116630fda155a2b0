// Command story shows an election step by step: three candidates, a crash, a leader that is
// paused at the wrong moment, and a handover. It takes about twelve seconds, needs no server,
// and fails if an expected event does not happen in time.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/tenurehq/tenure/store/mem"
)

const usage = `usage: go run ./examples/story

Three candidates campaign for one group, in one process on a store in memory. The first
leader crashes. The second is paused between its check and its write, and its write is
refused when it resumes. The third hands over. Every change is one line, with the seconds
since the start. It takes about twelve seconds.

Colours are used on a terminal, unless NO_COLOR is set. There are no flags.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, os.Getenv, 2*time.Second)
	stop()
	os.Exit(code)
}

// run returns the exit code.
func run(ctx context.Context, args []string, out, errs io.Writer, env func(string) string, ttl time.Duration) int {
	if len(args) == 1 && slices.Contains([]string{"-h", "-help", "--help"}, args[0]) {
		_, _ = fmt.Fprint(out, usage)
		return 0
	}
	if len(args) > 0 {
		_, _ = fmt.Fprint(errs, usage)
		return 2
	}
	store := mem.New(mem.Options{Deployment: "story"})
	defer store.Close()
	s := newStory(store, ttl, &printer{out: out, start: time.Now(), colour: colours(out, env)})
	if err := s.run(ctx); err != nil {
		_, _ = fmt.Fprintf(errs, "error: %v\n", err)
		return 1
	}
	return 0
}

// colours reports whether out is a terminal whose user wants colours.
func colours(out io.Writer, env func(string) string) bool {
	f, ok := out.(*os.File)
	if !ok || env("NO_COLOR") != "" || env("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// printer prints one line per change.
type printer struct {
	out    io.Writer
	start  time.Time
	colour bool
}

const (
	bold = "\x1b[1m"
	red  = "\x1b[1;31m"
	off  = "\x1b[0m"
)

func (p *printer) paint(how, text string) string {
	if !p.colour {
		return text
	}
	return how + text + off
}

func (p *printer) say(format string, args ...any) {
	_, _ = fmt.Fprintf(p.out, "%5.1fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

func (p *printer) print(format string, args ...any) { _, _ = fmt.Fprintf(p.out, format+"\n", args...) }
