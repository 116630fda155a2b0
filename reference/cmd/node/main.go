// Command node joins a fleet, campaigns, and does the leader's work while it leads:
//
//	node -id node-1 -group billing -backend etcd -endpoints http://127.0.0.1:2379 -ledger http://127.0.0.1:7420
//	node -id n1 -group billing -backend raft -peers n1=10.0.0.1:7400,n2=10.0.0.2:7400,n3=10.0.0.3:7400 -data-dir d -ledger http://…
//	node -id alone -group billing -backend mem -ledger http://127.0.0.1:7420
//
// When it serves, it prints one line of JSON on standard output; everything else goes
// to standard error. Flags may have one dash or two. Every flag -x-y can be given in
// the environment as TENURE_NODE_X_Y, or in the file that -config names, one
// "x-y = value" a line; a flag goes before the environment, the environment before the
// file. The password for etcd is read from TENURE_NODE_PASSWORD or -password-file.
//
// The first SIGINT or SIGTERM hands the group over and stops, the second ends it at
// once. Exit codes: 0 stopped, 1 failed, 2 wrong usage, 6 the ledger or the engine
// cannot be reached, 75 the work did not stop in time.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	_ "time/tzdata" // schedules name zones, and not every host has them

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node"
)

const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitUnavailable = 6
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		s := <-signals
		signal.Reset(os.Interrupt, syscall.SIGTERM) // the second ends the process
		cancel(fmt.Errorf("stopped by signal: %v", s))
	}()
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
}

// run is the program without its process.
func run(ctx context.Context, args []string, env func(string) (string, bool), stdin io.Reader, stdout, stderr io.Writer) int {
	fail := func(code int, err error) int {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			_, _ = fmt.Fprintf(stderr, "error: %s\n", line)
		}
		return code
	}
	s, err := parse(args, env, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		return exitUsage
	case err != nil:
		return fail(exitUsage, err)
	}
	level := slog.LevelInfo
	if s.verbose {
		level = slog.LevelDebug
	}
	s.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	s.Exit = os.Exit
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.untilEOF {
		go func() {
			_, _ = io.Copy(io.Discard, stdin)
			cancel(errors.New("standard input ended"))
		}()
	}
	logged := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(logged)
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
			s.Log.Info("stopping", "node", s.ID, "cause", cause)
		}
	})
	err = node.Run(ctx, s.Config, func(line api.Ready) error {
		if err := json.NewEncoder(stdout).Encode(line); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
		return nil
	})
	if !stop() {
		<-logged // the process exits next
	}
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return exitOK // asked to stop before it was ready
	case isUsage(err):
		return fail(exitUsage, err)
	case errors.Is(err, ledgerapi.ErrUnavailable), errors.Is(err, node.ErrEngine):
		return fail(exitUnavailable, err)
	}
	return fail(exitFailure, err)
}

// isUsage: it could not work whatever the others do.
func isUsage(err error) bool {
	var wrong *node.ConfigError
	var argument *lease.ArgumentError
	var peers *raft.ConfigError
	return errors.As(err, &wrong) || errors.As(err, &argument) || errors.As(err, &peers)
}
