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
	ExitUsage       = 2 // wrong usage, or not confirmed: nothing was changed
	ExitNo          = 3 // the answer is no, such as: the group has no leader
	ExitFenced      = 4 // the given token or version is not the newest
	ExitDenied      = 5
	ExitUnavailable = 6
)

// ExitError is an error with an exit code. Err is nil if the command has already printed
// everything.
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

// Usage returns an ExitError with ExitUsage.
func Usage(format string, args ...any) error { return Exit(ExitUsage, fmt.Errorf(format, args...)) }

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

// UntilEOF returns a context that is canceled when the command's standard input ends, if
// on is set. A program that starts the command and then dies ends it this way.
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

// Run executes a command line, prints its error and returns the exit code. An error
// without an exit code is cobra's, about flags or arguments: Run then also prints the
// usage.
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
		return exit.Code
	}
	last := ""
	for line := range strings.SplitSeq(argumentsError(err), "\n") {
		if line = strings.TrimSpace(line); line != last { // drivers repeat themselves
			_, _ = fmt.Fprintf(stderr, "error: %s\n", line)
		}
		last = line
	}
	if exit != nil {
		return exit.Code
	}
	_, _ = fmt.Fprintf(stderr, "error: %s\n", usage(cmd, args))
	return ExitUsage
}

// argumentsError returns the text of an error, with plain words for the number of arguments.
func argumentsError(err error) string {
	text := err.Error()
	var least, most, got int
	if _, bad := fmt.Sscanf(text, "requires at least %d arg(s), only received %d", &least, &got); bad == nil {
		return "missing argument"
	}
	if _, bad := fmt.Sscanf(text, "accepts at most %d arg(s), received %d", &most, &got); bad == nil {
		return "too many arguments"
	}
	_, exact := fmt.Sscanf(text, "accepts %d arg(s), received %d", &least, &got)
	_, between := fmt.Sscanf(text, "accepts between %d and %d arg(s), received %d", &least, &most, &got)
	switch {
	case exact != nil && between != nil:
		return text
	case got < least:
		return "missing argument"
	default:
		return "too many arguments"
	}
}

// usage returns the usage of a command, or suggests a command with a similar name.
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

// MissingCommand is the RunE of a command that only has subcommands: it prints the help
// and fails.
func MissingCommand(cmd *cobra.Command, _ []string) error {
	_ = cmd.Help()
	return Usage("missing command; see `%s --help`", cmd.CommandPath())
}

// Parent returns a command that only has subcommands.
func Parent(use, short string, below ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: MissingCommand}
	cmd.AddCommand(below...)
	return cmd
}

// Say prints a line on standard error.
func Say(cmd *cobra.Command, format string, args ...any) {
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
}

const notConfirmed = "nothing was changed: cannot ask without a terminal; use --yes"

// Confirm asks at the terminal whether to continue. Without a terminal only --yes confirms.
func Confirm(cmd *cobra.Command, yes bool) error {
	if yes {
		return nil
	}
	in := cmd.InOrStdin()
	if !Terminal(in) {
		return Usage(notConfirmed)
	}
	_, _ = fmt.Fprint(cmd.ErrOrStderr(), "continue? [y/N] ")
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && line == "" {
		return Usage(notConfirmed)
	}
	if !strings.EqualFold(strings.TrimSpace(line), "y") {
		return Usage("nothing was changed")
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
