package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// The exit codes that are not the command's own. A command that died of signal n is 128+n.
const (
	CodeLost      = 75  // the term was over, and the command was stopped
	CodeNotInTime = 124 // not elected in time
	CodeFailed    = 125 // the wrapper's own failure
	CodeCannotRun = 126
	CodeNotFound  = 127
)

// Config says what to run, and where.
type Config struct {
	Group string
	ID    string   // this candidate's
	Args  []string // the command and its arguments; no shell is involved

	TTL   time.Duration // 0: the default of package lease
	Grace time.Duration // between SIGTERM and SIGKILL

	// Wait is how long to stand in line; 0: for ever. With NoWait it is not stood in at all.
	Wait   time.Duration
	NoWait bool
	// Restart campaigns again when a term was lost, and runs the command anew.
	Restart bool
	// Once names what is to be run to its end once for all: a command that ended with 0
	// under this name is not run again by anybody.
	Once string
	// Denied reports whether an error of the store says that this caller may not do that.
	Denied func(error) bool

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Say            func(format string, args ...any) // tells people what happens
	Log            *slog.Logger                     // what the election has to say
}

// Validate says which settings cannot work, and what to do.
func (c *Config) Validate() error {
	var wrong []error
	if len(c.Args) == 0 {
		wrong = append(wrong, errors.New("which command? tenure exec GROUP -- COMMAND ARGS…"))
	}
	if c.NoWait && c.Wait != 0 {
		wrong = append(wrong, errors.New("wait and no-wait exclude each other"))
	}
	if c.Wait < 0 {
		wrong = append(wrong, fmt.Errorf("wait: %v is negative: leave it out to wait for ever, or say --no-wait", c.Wait))
	}
	if c.Once != "" && !lease.ValidName(c.Once) {
		wrong = append(wrong, fmt.Errorf("once: %q is no key: 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", c.Once))
	}
	_, err := Timing(c.TTL, c.Grace)
	wrong = append(wrong, lease.CheckGroup(c.Group), lease.CheckCandidate(tenure.Candidate{ID: c.ID}), err)
	return errors.Join(wrong...)
}

// CodeError is an error with the exit code that it stands for. Err may be nil: the code
// is the command's own, and there is nothing to add.
type CodeError struct {
	Code int
	Err  error
}

func (e *CodeError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *CodeError) Unwrap() error { return e.Err }

// Run waits until this candidate leads the group, and runs the command for as long as it
// does. It returns nil if the command ended with 0, otherwise a CodeError. Signals to this
// process are passed on while it runs.
func Run(ctx context.Context, store lease.Store, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return &CodeError{CodeFailed, err}
	}
	path, err := exec.LookPath(cfg.Args[0])
	if err != nil {
		return cannotRun(cfg.Args[0], err)
	}
	r := &runner{Config: &cfg, path: path, store: store, clock: clock.System(), beats: make(chan struct{}, 1), barred: make(chan error, 1)}
	if r.timing, err = Timing(cfg.TTL, cfg.Grace); err != nil {
		return &CodeError{CodeFailed, err}
	}
	if r.file, err = newTokenFile(); err != nil {
		return &CodeError{CodeFailed, err}
	}
	defer r.file.remove()
	if cfg.Once != "" {
		r.once = &once{store: store, name: "once/" + cfg.Group + "/" + cfg.Once, call: r.timing.CallTimeout, denied: cfg.Denied}
		if done, err := r.once.look(ctx); err != nil {
			return &CodeError{CodeFailed, fmt.Errorf("whether %q was done cannot be read: %w", cfg.Once, err)}
		} else if done {
			return r.doneAlready()
		}
	}
	node, err := lease.New(store, lease.Config{
		Candidate: tenure.Candidate{ID: cfg.ID}, Scope: lease.Scope{cfg.Group}, Timing: r.timing, OnNote: r.note, Log: calmly(cfg.Log),
	})
	if err != nil {
		return &CodeError{CodeFailed, err}
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		_ = node.Close(cctx)
	}()
	if r.elector, err = node.Elector(cfg.Group); err != nil {
		return &CodeError{CodeFailed, err}
	}
	stop := r.listen()
	defer stop()
	return r.run(ctx)
}

// closeWithin bounds the release of the group and the closing of the session, both of
// which happen by themselves a TTL later.
const closeWithin = 2 * time.Second

type runner struct {
	*Config
	path    string
	store   lease.Store
	clock   clock.Clock
	timing  lease.Timing
	elector *lease.Elector
	file    tokenFile
	once    *once
	beats   chan struct{}
	signals chan os.Signal
	refused atomic.Pointer[error] // what a campaign was refused for last
	barred  chan error            // why it is of no use to go on
}

// note wakes the service when there is a new deadline.
func (r *runner) note(n lease.Note) {
	switch n.Kind {
	case lease.NoteBeat:
		select {
		case r.beats <- struct{}{}:
		default:
		}
	case lease.NoteOpenFailed, lease.NoteFailed:
		if n.Err != nil {
			r.refused.Store(&n.Err)
			r.bar(n)
		}
	case lease.NoteConflict, lease.NoteBegan:
		r.refused.Store(nil)
	}
}

func (r *runner) run(ctx context.Context) error {
	for {
		// The keeper is there before the term: its start is not on the command's time.
		g, err := spawn(r.Config, r.path, r.file)
		if err != nil {
			return &CodeError{CodeFailed, err}
		}
		term, err := r.campaign(ctx)
		if err != nil {
			g.release()
			if errors.Is(err, errDone) {
				return r.doneAlready()
			}
			return err
		}
		out := r.lead(ctx, term, g)
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		err = term.Resign(rctx)
		cancel()
		if err != nil && out.lost == nil {
			r.Say("the group is free when the session expires, within %v: %v", r.timing.TTL, err)
		}
		switch {
		case out.lost != nil && r.Restart && !out.asked:
			r.Say("standing in line again")
		case out.lost != nil:
			return &CodeError{CodeLost, fmt.Errorf("leadership of group %q (token %d) is over: %w; nothing of the command runs any more", r.Group, term.Token(), reason(out.lost))}
		case out.code == 0:
			return nil
		default:
			return &CodeError{out.code, out.err}
		}
	}
}

// lead runs the command in a term, unless it was done once for all; and writes down that
// it is.
func (r *runner) lead(ctx context.Context, term *tenure.Term, g *guard) outcome {
	defer g.release()
	if r.once != nil {
		hctx, stop := r.heeding(ctx)
		done, err := r.once.begin(hctx, term)
		stop()
		var sig signalledError
		switch {
		case errors.As(err, &sig):
			return outcome{code: 128 + number(sig.Signal), err: fmt.Errorf("that %q begins could not be written down, and it was not begun: %w", r.Once, err)}
		case err != nil && term.Check() != nil:
			return outcome{code: CodeLost, lost: context.Cause(term.Context())}
		case err != nil:
			return outcome{code: CodeFailed, err: fmt.Errorf("that %q begins cannot be written down, so it was not begun: %w", r.Once, err)}
		case done:
			_ = r.doneAlready()
			return outcome{}
		}
	}
	r.Say("%s leads group %q with token %d", r.ID, r.Group, term.Token())
	if !wholeTree {
		r.Say("on this system only what stays in the command's process group is stopped with it")
	}
	out := r.serve(term, g)
	if r.once == nil || out.lost != nil || out.code != 0 {
		return out
	}
	hctx, stop := r.heeding(ctx)
	defer stop()
	if err := r.once.finish(hctx, term); err != nil {
		return r.notWritten(err)
	}
	return out
}

// notWritten is the outcome of a command that ended well, which nobody will know.
func (r *runner) notWritten(err error) outcome {
	err = fmt.Errorf("the command has ended well, but that cannot be written down, so another may run it again: %w", err)
	var sig signalledError
	switch {
	case errors.As(err, &sig):
		return outcome{code: 128 + number(sig.Signal), err: err}
	case r.Denied != nil && r.Denied(err):
		return outcome{code: CodeFailed, err: err}
	default:
		r.Say("%v", err)
		return outcome{code: CodeLost, lost: errors.Unwrap(err)}
	}
}

// heeding is a context that a signal which asks for an end ends too, while there is no
// command to pass it to. What it has started ends with stop.
func (r *runner) heeding(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case sig := <-r.signals:
				if asksForEnd(sig) {
					cancel(signalledError{sig})
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

func (r *runner) doneAlready() error {
	r.Say("%q of group %q is done: by %s at %s, with token %s; nothing to run", r.Once, r.Group, r.once.seen.Values["node"], r.once.seen.Values["at"], r.once.seen.Values["token"])
	return nil
}

// reason is the cause without what people are told anyway.
func reason(cause error) error {
	var over *tenure.EndedError
	if errors.As(cause, &over) {
		return over.Cause
	}
	return cause
}
