package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/supervise/keeper"
	"github.com/tenurehq/tenure/store"
)

// Exit codes that are not the command's own. 128+n: signal n ended the command.
const (
	CodeLost      = 75  // the term ended, and the command was stopped
	CodeNotInTime = 124 // not elected in time
	CodeFailed    = 125 // the supervisor failed
	CodeCannotRun = 126
	CodeNotFound  = 127
)

// Config says what to run, and when.
type Config struct {
	Group    string
	ID       string   // node id of this candidate
	Priority int      // of this candidate: higher ones are elected first
	Args     []string // the command and its arguments; no shell is involved

	TTL   time.Duration // 0: the default of package lease
	Grace time.Duration // between SIGTERM and SIGKILL when the term ends
	// StopTimeout is how long after the first SIGINT or SIGTERM to this process the command
	// is killed; 0: never.
	StopTimeout time.Duration
	// Isolate runs the command in a pid namespace that ends with the keeper.
	Isolate bool

	// Wait is how long to wait for leadership; 0: without limit. NoWait: do not wait for
	// another leader.
	Wait   time.Duration
	NoWait bool
	// Restart campaigns again after a lost term, and runs the command again.
	Restart bool
	// Once is a key: a command that ended with 0 under this key is not run again for OnceFor,
	// by the wall clock of the host that would run it. 0: never again.
	Once    string
	OnceFor time.Duration

	// Settings is what the function that keeper.Main gets needs to open the store; nil: if this
	// process is killed, its session expires.
	Settings []byte

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Say            func(format string, args ...any) // messages for people; one call at a time
}

// Validate returns the settings that cannot work, and what to change.
func (c *Config) Validate() error {
	var errs []error
	if len(c.Args) == 0 {
		errs = append(errs, errors.New("missing command; usage: tenure exec [flags] GROUP -- COMMAND [ARGS…]"))
	}
	if c.NoWait && c.Wait != 0 {
		errs = append(errs, errors.New("wait and no-wait exclude each other"))
	}
	if c.Wait < 0 {
		errs = append(errs, fmt.Errorf("wait: %v is negative; omit it to wait without limit, or use --no-wait", c.Wait))
	}
	if c.Once != "" && !store.ValidName(c.Once) {
		errs = append(errs, fmt.Errorf("once: %q must be 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", c.Once))
	}
	if c.OnceFor < 0 {
		errs = append(errs, fmt.Errorf("once-for: %v is negative; 0s keeps the key for ever", c.OnceFor))
	}
	if c.StopTimeout < 0 {
		errs = append(errs, fmt.Errorf("stop-timeout: %v is negative; omit it to wait without limit", c.StopTimeout))
	}
	_, err := Timing(c.TTL, c.Grace)
	errs = append(errs, store.CheckGroup(c.Group), store.CheckCandidate(tenure.Candidate{ID: c.ID}), err)
	return errors.Join(errs...)
}

// CodeError is an error with an exit code. Err is nil if the code is the command's own.
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

// Run waits until this candidate leads the group, and runs the command while it does. It
// returns nil if the command ended with 0, otherwise a CodeError. Signals to this process
// are passed to the command.
func Run(ctx context.Context, st store.Store, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return &CodeError{CodeFailed, err}
	}
	path, err := exec.LookPath(cfg.Args[0])
	if err != nil {
		return cannotRun(cfg.Args[0], err)
	}
	var printing sync.Mutex
	say := cfg.Say
	cfg.Say = func(format string, args ...any) {
		printing.Lock()
		defer printing.Unlock()
		say(format, args...)
	}
	st = guard.Guard(st, guard.Config{}) // below the observer, which shows what it refuses
	r := &runner{Config: &cfg, path: path, store: observe(st), clock: clock.System()}
	if r.timing, err = Timing(cfg.TTL, cfg.Grace); err != nil {
		return &CodeError{CodeFailed, err}
	}
	if r.file, err = keeper.NewFencingFile(); err != nil {
		return &CodeError{CodeFailed, err}
	}
	defer r.file.Remove()
	if cfg.Once != "" {
		r.once = &once{store: st, name: OnceName(cfg.Group, cfg.Once), keep: cfg.OnceFor, call: r.timing.CallTimeout}
	}
	node, err := lease.New(r.store, lease.Config{
		Candidate: tenure.Candidate{ID: cfg.ID, Priority: cfg.Priority}, Scope: store.Scope{cfg.Group}, Timing: r.timing, Log: slog.New(slog.DiscardHandler), Keeper: r,
	})
	if err != nil {
		return &CodeError{CodeFailed, err}
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = node.Close(cctx)
	}()
	if r.elector, err = node.Elector(cfg.Group); err != nil {
		return &CodeError{CodeFailed, err}
	}
	stop := r.listen()
	defer stop()
	var printer sync.WaitGroup
	defer printer.Wait()
	done := make(chan struct{})
	defer close(done)
	printer.Go(func() { r.store.print(cfg.Say, done) })
	return r.run(ctx)
}

// closeTimeout bounds the release of the group and the closing of the session. Both happen
// by themselves after one TTL.
const closeTimeout = 2 * time.Second

func resign(ctx context.Context, term *tenure.Term) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return term.Resign(ctx)
}

type runner struct {
	*Config
	path    string
	store   *observer
	clock   clock.Clock
	timing  lease.Timing
	elector *lease.Elector
	file    keeper.FencingFile
	once    *once
	signals chan os.Signal
	session atomic.Pointer[store.Session] // the newest
}

// Keep and Forget make the runner a lease.Keeper.
func (r *runner) Keep(s store.Session, _ string) { r.session.Store(&s) }

// Forget does nothing: to close a session twice does no harm.
func (r *runner) Forget(string) {}

func (r *runner) run(ctx context.Context) error {
	for {
		// Start the keeper before the term, so that its start takes no time of the lease.
		k, err := keeper.New(keeper.Config{
			Group: r.Group, Node: r.ID, Path: r.path, Args: r.Args, File: r.file, Isolate: r.Isolate, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
		})
		if err != nil {
			return &CodeError{CodeFailed, err}
		}
		term, err := r.campaign(ctx)
		if err != nil {
			k.Release()
			if errors.Is(err, errDone) {
				r.sayDone()
				return nil
			}
			return err
		}
		out := r.lead(ctx, term, k)
		if err := resign(ctx, term); err != nil && out.lost == nil {
			r.Say("cannot resign; the group is free when the session expires, within %v: %v", r.timing.TTL, plain(err))
		}
		switch {
		case out.lost != nil && r.Restart && !out.interrupted:
			r.Say("waiting for leadership again")
		case out.lost != nil:
			return &CodeError{CodeLost, fmt.Errorf("leadership of group %q (token %d) ended: %w; the command was stopped", r.Group, term.Token(), reason(out.lost))}
		case out.code == 0:
			return nil
		default:
			return &CodeError{out.code, out.err}
		}
	}
}

// outcome is the result of a term.
type outcome struct {
	code        int
	lost        error // why the term ended while the command ran
	err         error // of the supervisor, or of starting the command
	interrupted bool  // by a signal, so the command is not restarted
}

// lead runs the command in a term. With Once it first checks that the command was not done
// yet, and records the result.
func (r *runner) lead(ctx context.Context, term *tenure.Term, k *keeper.Process) outcome {
	defer k.Release()
	if r.once != nil {
		sctx, stop := r.untilSignal(ctx)
		done, err := r.once.begin(sctx, term)
		stop()
		var sig signalError
		switch {
		case errors.As(err, &sig):
			return outcome{code: 128 + number(sig.Signal), err: fmt.Errorf("cannot record the start of %q; the command was not started: %w", r.Once, err)}
		case err != nil && term.Check() != nil:
			return outcome{code: CodeLost, lost: context.Cause(term.Context())}
		case err != nil:
			return outcome{code: CodeFailed, err: fmt.Errorf("cannot record the start of %q; the command was not started: %w", r.Once, err)}
		case done:
			r.sayDone()
			return outcome{}
		}
	}
	r.Say("%s leads group %q with token %d", r.ID, r.Group, term.Token())
	if !keeper.WholeTree {
		r.Say("on this system only the command's process group is stopped with it")
	} else if !k.Proves {
		r.Say("this kernel cannot prove the death of a process (that needs Linux 5.3): if this process is killed, its session expires after %v", r.timing.TTL)
	}
	out := r.supervise(term, k)
	if r.once == nil || out.lost != nil || out.code != 0 {
		return out
	}
	sctx, stop := r.untilSignal(ctx)
	defer stop()
	if err := r.once.finish(sctx, term); err != nil {
		return r.notRecorded(err)
	}
	r.once.removeExpired(sctx)
	return out
}

// notRecorded is the outcome of a command whose success cannot be recorded.
func (r *runner) notRecorded(err error) outcome {
	err = fmt.Errorf("cannot record the success of the command, so another node may run it again: %w", err)
	var sig signalError
	switch {
	case errors.As(err, &sig):
		return outcome{code: 128 + number(sig.Signal), err: err}
	case store.Permanent(err):
		return outcome{code: CodeFailed, err: err}
	default:
		r.Say("%v", err)
		return outcome{code: CodeLost, lost: errors.Unwrap(err)}
	}
}

// untilSignal returns a context that a signal which asks for an end cancels, for times at
// which there is no command to pass it to. stop waits for its goroutine.
func (r *runner) untilSignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case sig := <-r.signals:
				if asksForEnd(sig) {
					cancel(signalError{sig})
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

func (r *runner) sayDone() {
	v := r.once.seen.Values
	r.Say("%q of group %q was done by %s at %s with token %s; nothing to run", r.Once, r.Group, v["node"], v["at"], v["token"])
}

// reason returns the cause of an EndedError, without the text that is printed anyway.
func reason(cause error) error {
	var ended *tenure.EndedError
	if errors.As(cause, &ended) {
		return ended.Cause
	}
	return cause
}
