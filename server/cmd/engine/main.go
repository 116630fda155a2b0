// Command engine runs one etcd member, for tests that need real engines and for
// those who have none yet:
//
//	engine -data-dir d
//	engine -name n1 -data-dir d1 -members n1=127.0.0.1:7001,n2=127.0.0.1:7002,n3=127.0.0.1:7003
//
// When it serves, it prints one line of JSON on standard output; everything else
// goes to standard error. Every flag can be given in the environment: -data-dir is
// TENURE_ENGINE_DATA_DIR. The first SIGINT or SIGTERM stops it, the second ends it
// at once. Exit codes: 0 stopped, 1 failed, 2 wrong usage.
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

	"github.com/tenurehq/tenure/server/embeddedetcd"
)

const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
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

// ready is the line on standard output.
type ready struct {
	Name      string   `json:"name"`
	Endpoints []string `json:"endpoints"`
	Peer      string   `json:"peer,omitempty"`
	DataDir   string   `json:"data_dir"`
	PID       int      `json:"pid"`
}

type settings struct {
	embeddedetcd.Config
	untilEOF bool
}

// errUsage: the flag package has said what is wrong.
var errUsage = errors.New("usage")

func parse(args []string, env func(string) (string, bool), stderr io.Writer) (settings, error) {
	var s settings
	var members string
	var verbose bool
	var tls embeddedetcd.TLS
	fs := flag.NewFlagSet("engine", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&s.Name, "name", "", `name of this member (default "engine")`)
	fs.StringVar(&s.DataDir, "data-dir", "", "directory of the log and the database, created if missing (default a temporary one)")
	fs.StringVar(&s.ClientURL, "client", "127.0.0.1:0", "URL or host:port to serve clients on, port 0 is a free one")
	fs.StringVar(&s.AdvertiseClientURL, "advertise", "", "client URL to tell others about (default that of -client)")
	fs.StringVar(&s.PeerURL, "peer", "", "URL or host:port to listen on for other members (default this member's in -members; alone it listens for nobody)")
	fs.StringVar(&members, "members", "", "all members as name=peerURL,name=peerURL,… (default this one alone)")
	fs.DurationVar(&s.Tick, "tick", 0, "time between heartbeats of the engine's leader (default 100ms)")
	fs.DurationVar(&s.Election, "election", 0, "how long the others wait for one (default 1s)")
	fs.DurationVar(&s.ReadyTimeout, "ready-timeout", 0, "how long to wait for a quorum (default 15s alone, 1m in a cluster)")
	fs.StringVar(&tls.Cert, "cert", "", "certificate for clients and peers, PEM file")
	fs.StringVar(&tls.Key, "key", "", "its key, PEM file")
	fs.StringVar(&tls.CA, "ca", "", "who signs the certificates of clients and peers, PEM file")
	fs.BoolVar(&s.Insecure, "insecure", false, "listen beyond loopback without TLS")
	fs.BoolVar(&s.untilEOF, "until-eof", false, "stop when standard input ends, for programs that start members and may die")
	fs.BoolVar(&verbose, "v", false, "show etcd's own log")
	fs.Usage = func() {
		_, _ = fmt.Fprintf(stderr, "usage: engine [flags]\nRuns one etcd member. A flag -x-y can be given as TENURE_ENGINE_X_Y.\n")
		fs.PrintDefaults()
	}
	var wrong error
	fs.VisitAll(func(f *flag.Flag) {
		name := "TENURE_ENGINE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if v, ok := env(name); ok && v != "" {
			if err := f.Value.Set(v); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("environment %s=%q: %w", name, v, err))
			}
		}
	})
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return s, err
	case err != nil:
		return s, errUsage
	case wrong != nil:
		return s, wrong
	case fs.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q: flags only", fs.Arg(0))
	}
	if members != "" {
		s.Members = strings.Split(members, ",")
	}
	if tls != (embeddedetcd.TLS{}) {
		s.ClientTLS, s.PeerTLS = tls, tls
	}
	minLevel := slog.LevelInfo
	if verbose {
		minLevel = slog.LevelDebug
	}
	s.Debug = verbose
	s.Logger = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: minLevel}))
	return s, s.Validate()
}

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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.untilEOF {
		go func() {
			_, _ = io.Copy(io.Discard, stdin)
			cancel(errors.New("standard input ended"))
		}()
	}

	e, err := embeddedetcd.Start(ctx, s.Config)
	var wrong *embeddedetcd.ConfigError
	switch {
	case err != nil && ctx.Err() != nil:
		s.Logger.Info("stopped before it was ready", "cause", context.Cause(ctx))
		return exitOK
	case errors.As(err, &wrong):
		return fail(exitUsage, err)
	case err != nil:
		return fail(exitFailure, err)
	}
	line := ready{Name: e.Name(), Endpoints: e.Endpoints(), Peer: e.PeerURL(), DataDir: e.DataDir(), PID: os.Getpid()}
	if err := json.NewEncoder(stdout).Encode(line); err != nil {
		return fail(exitFailure, errors.Join(fmt.Errorf("standard output: %w", err), e.Stop()))
	}

	select {
	case <-ctx.Done():
		s.Logger.Info("stopping", "member", e.Name(), "cause", context.Cause(ctx))
		if err := e.Stop(); err != nil {
			return fail(exitFailure, err)
		}
		return exitOK
	case err := <-e.Err():
		return fail(exitFailure, errors.Join(err, e.Stop()))
	}
}
