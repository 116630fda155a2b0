// Command story tells an election as it happens: three candidates, a crash, a
// leader that is paused at the wrong moment, and a baton that is passed. It takes
// about twelve seconds, needs nothing, and exits with an error if anything does
// not happen in its time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/tenurehq/tenure/store/mem"
)

const usage = `usage: go run ./examples/story

Three candidates stand for one group, in one process on a store in memory. The
first leader crashes; the second is paused between its check and its write, and
its write is refused when it wakes up; the third passes the baton. Every change
is one line, with the seconds since the start. It takes about twelve seconds.

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
	flags := flag.NewFlagSet("story", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprint(out, usage)
		return 0
	case err != nil || flags.NArg() > 0:
		_, _ = fmt.Fprint(errs, usage)
		return 2
	}
	store := mem.New(mem.Options{Deployment: "story"})
	defer store.Shutdown()
	s := newStory(store, ttl, &narrator{out: out, start: time.Now(), colour: colours(out, env)})
	if err := s.tell(ctx); err != nil {
		_, _ = fmt.Fprintf(errs, "error: the story went wrong: %v\n", err)
		return 1
	}
	return 0
}

// colours reports whether out is a terminal whose user wants them.
func colours(out io.Writer, env func(string) string) bool {
	f, ok := out.(*os.File)
	if !ok || env("NO_COLOR") != "" || env("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// narrator writes one line per change.
type narrator struct {
	out    io.Writer
	start  time.Time
	colour bool
}

const (
	bold = "\x1b[1m"
	red  = "\x1b[1;31m"
	off  = "\x1b[0m"
)

func (n *narrator) paint(how, text string) string {
	if !n.colour {
		return text
	}
	return how + text + off
}

func (n *narrator) say(format string, args ...any) {
	_, _ = fmt.Fprintf(n.out, "%5.1fs  %s\n", time.Since(n.start).Seconds(), fmt.Sprintf(format, args...))
}

func (n *narrator) print(format string, args ...any) { _, _ = fmt.Fprintf(n.out, format+"\n", args...) }
