package show

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
)

// redrawEvery bounds how often the screen is drawn while groups change.
const redrawEvery = 100 * time.Millisecond

func newTop(env cli.Env) *cobra.Command {
	return storecli.New(env, storecli.Spec{
		Use:   "top [GROUP|PREFIX*]...",
		Short: "Show groups and their leaders live in the terminal.",
		Long: `Show groups, leaders and changes as they happen. Keys select a group, sort, filter, and ask
the leader of the selected group to step down or to hand over; "?" lists them. While the store
cannot be reached, the screen says for how long, and marks the last known leaders with "?".

If standard output is not a terminal, the output is that of ` + "`tenure watch`" + `.`,
		Example: `  tenure top
  tenure top 'shard-*'`,
		Args: storecli.Scope,
		Run: func(ctx context.Context, r *storecli.Run, args []string) error {
			scope := storecli.ScopeOf(args)
			if !cli.Terminal(r.Out.W) || !cli.Terminal(r.Cmd.InOrStdin()) || !r.Out.Table() {
				return newWatcher(r, scope).run(ctx)
			}
			return runTop(ctx, r, scope)
		},
	})
}

// top runs a screen on a store. Only loop touches the screen: others send it functions.
type top struct {
	*storecli.Run
	*screen
	events chan func()
	orders sync.WaitGroup
}

func (t *top) send(ctx context.Context, change func()) {
	select {
	case t.events <- change:
	case <-ctx.Done():
	}
}

func runTop(ctx context.Context, r *storecli.Run, scope store.Scope) error {
	out, in := int(r.Out.W.(*os.File).Fd()), r.Cmd.InOrStdin().(*os.File)
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	// Another screen, without a cursor and without line wrapping.
	leave := func() error {
		return errors.Join(r.Out.Print("\x1b[?7h\x1b[?25h\x1b[?1049l"), term.Restore(int(in.Fd()), before))
	}
	if err := r.Out.Print("\x1b[?1049h\x1b[?25l\x1b[?7l"); err != nil {
		return errors.Join(err, leave())
	}
	ctx, stop := context.WithCancel(ctx)
	t := &top{Run: r, screen: newScreen(r.Out.Coloured()), events: make(chan func(), 256)}
	keys := make(chan string, 16)
	// A read of the terminal cannot be interrupted: this goroutine ends with the process.
	go readKeys(in, keys)
	watched := make(chan error, 1)
	go func() {
		defer stop()
		watched <- t.watch(ctx, scope)
	}()
	err = t.loop(ctx, keys, func() (int, int, error) { return term.GetSize(out) })
	stop()
	t.orders.Wait()
	return errors.Join(err, <-watched, leave())
}

// loop handles events and keys, and draws the screen after them.
func (t *top) loop(ctx context.Context, keys <-chan string, size func() (width, height int, err error)) error {
	clock := time.NewTicker(time.Second)
	defer clock.Stop()
	redraw := time.NewTimer(0)
	defer redraw.Stop()
	dirty, drawn := true, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case change := <-t.events:
			change()
		case <-clock.C:
		case <-redraw.C:
			width, height, err := size()
			if err != nil {
				return fmt.Errorf("terminal: %w", err)
			}
			t.width, t.height = max(width, 1), max(height, 1)
			dirty, drawn = false, time.Now()
			if err := t.Out.Print("\x1b[H" + strings.Join(t.render(time.Now()), "\x1b[K\r\n") + "\x1b[K\x1b[J"); err != nil {
				return err
			}
			continue
		case k, ok := <-keys:
			if !ok {
				return nil
			}
			do, quit := t.key(k)
			if quit {
				return nil
			}
			if do != nil {
				t.note = "asked " + do.view.Candidate.ID + ", waiting for the answer"
				t.orders.Go(func() { t.carryOut(ctx, *do) })
			}
		}
		if !dirty {
			dirty = true
			redraw.Reset(redrawEvery - time.Since(drawn))
		}
	}
}

// watch follows the store until ctx ends, or the store refuses the caller.
func (t *top) watch(ctx context.Context, scope store.Scope) error {
	backoff := minBackoff
	for ctx.Err() == nil {
		synced := false
		err := t.follow(ctx, scope, &synced)
		if synced {
			backoff = minBackoff
		}
		if storecli.Denied(err) || errors.Is(err, store.ErrInvalid) {
			return err
		}
		t.send(ctx, func() { t.unreachable(err, time.Now()) })
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
		}
		backoff = min(2*backoff, maxBackoff)
	}
	return nil
}

func (t *top) follow(ctx context.Context, scope store.Scope, synced *bool) error {
	began := false
	for u, err := range t.Watch(ctx, scope) {
		if err != nil {
			return err
		}
		*synced = *synced || u.Kind == store.Synced
		first := !began
		began = true
		t.send(ctx, func() {
			if first {
				t.restart()
			}
			t.update(u, time.Now())
		})
	}
	return errors.New("the watch ended")
}

// carryOut asks a leader to give up or to hand over the term that the user saw.
func (t *top) carryOut(ctx context.Context, o order) {
	asked, err := t.Ask(ctx, o.view, operator.Order{Verb: o.verb, To: o.to, Reason: "tenure top", Wait: 15 * time.Second})
	note := fmt.Sprintf("%s (term %d): %s %s", o.view.Group, o.view.Token, asked.Outcome, asked.Detail)
	if err != nil {
		note = fmt.Sprintf("%s (term %d): %v", o.view.Group, o.view.Token, err)
	}
	t.send(ctx, func() { t.note = note })
}

// readKeys sends each key until the terminal is closed. A terminal sends the bytes of one key
// together; several keys that come together are told apart by their escape characters.
func readKeys(in *os.File, keys chan<- string) {
	defer close(keys)
	buf := make([]byte, 256)
	for {
		n, err := in.Read(buf)
		for _, k := range splitKeys(string(buf[:n])) {
			keys <- k
		}
		if err != nil {
			return
		}
	}
}

// splitKeys splits what a terminal sent into keys: characters, and escape sequences such as
// ESC [ 5 ~. Sequences of the other mode (ESC O A) become those of the first.
func splitKeys(text string) (keys []string) {
	for text != "" {
		_, n := utf8.DecodeRuneInString(text)
		if len(text) > 2 && (strings.HasPrefix(text, "\x1b[") || strings.HasPrefix(text, "\x1bO")) {
			if end := strings.IndexFunc(text[2:], func(r rune) bool { return r >= '@' && r <= '~' }); end >= 0 {
				n = 2 + end + 1
			}
		}
		keys = append(keys, strings.Replace(text[:n], "\x1bO", "\x1b[", 1))
		text = text[n:]
	}
	return keys
}
