package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes that mean the same in every program.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2
	ExitUnavailable = 6
)

// ExitError is an error with the exit code that it stands for. Err is nil if everything
// was printed already.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Exit returns an ExitError.
func Exit(code int, err error) error { return &ExitError{Code: code, Err: err} }

// UntilSignal returns a context that the first SIGINT or SIGTERM cancels. The second
// signal ends the process.
func UntilSignal() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Reset(os.Interrupt, syscall.SIGTERM)
		cancel(fmt.Errorf("stopped by signal: %v", s))
	}()
	return ctx
}

// UntilEOF returns a context that is canceled when the command's standard input ends,
// if on is set: a program that starts the command and dies then ends it too.
func UntilEOF(cmd *cobra.Command, on bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(cmd.Context())
	if on {
		go func() {
			_, _ = io.Copy(io.Discard, cmd.InOrStdin())
			cancel(errors.New("standard input ended"))
		}()
	}
	return ctx, func() { cancel(nil) }
}

// Run executes a command line, prints its error, and returns the exit code. An error
// that carries no exit code is cobra's, about flags or arguments: Run then also prints
// how the command is used.
func Run(ctx context.Context, root *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	var exit *ExitError
	if errors.As(err, &exit) && exit.Err == nil {
		return exit.Code // the command has printed everything itself
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		_, _ = fmt.Fprintf(stderr, "error: %s\n", line)
	}
	if exit != nil {
		return exit.Code
	}
	_, _ = fmt.Fprintf(stderr, "error: %s\n", usage(cmd, args))
	return ExitUsage
}

// usage says how a command is used, or which one may have been meant.
func usage(cmd *cobra.Command, args []string) string {
	if cmd.HasParent() {
		return fmt.Sprintf("usage: %s; see `%s --help`", cmd.UseLine(), cmd.CommandPath())
	}
	if len(args) > 0 {
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return fmt.Sprintf("did you mean `%s %s`?", cmd.Name(), strings.Join(near, fmt.Sprintf("` or `%s ", cmd.Name())))
		}
	}
	return fmt.Sprintf("see `%s --help`", cmd.Name())
}

// MissingCommand is what a root command runs: it prints its help and fails.
func MissingCommand(cmd *cobra.Command, _ []string) error {
	_ = cmd.Help()
	return Exit(ExitUsage, fmt.Errorf("missing command; see `%s --help`", cmd.Name()))
}

// Say prints a line for people, on standard error.
func Say(cmd *cobra.Command, format string, args ...any) {
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
}

// Confirm asks at a terminal whether to go on. Without a terminal only --yes confirms.
func Confirm(cmd *cobra.Command, yes bool) error {
	if yes {
		return nil
	}
	in := cmd.InOrStdin()
	if !Terminal(in) {
		return Exit(ExitUsage, errors.New("nothing was changed: there is no terminal to ask at; use --yes"))
	}
	_, _ = fmt.Fprint(cmd.ErrOrStderr(), "go on? [y/N] ")
	line, _ := bufio.NewReader(in).ReadString('\n')
	if !strings.EqualFold(strings.TrimSpace(line), "y") {
		return Exit(ExitUsage, errors.New("nothing was changed"))
	}
	return nil
}

// Loopback refuses an address that other hosts can reach, unless insecure is set.
func Loopback(addr string, insecure bool) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen: %q is not host:port", addr)
	}
	if insecure || host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("listen: other hosts can reach %s, and there is no authentication; use a loopback address, or --insecure", addr)
	}
	return nil
}
