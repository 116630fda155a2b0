// Command engine runs one etcd member, for tests and for a first cluster:
//
//	engine -data-dir d
//	engine -name n1 -data-dir d1 -members n1=127.0.0.1:7001,n2=127.0.0.1:7002,n3=127.0.0.1:7003
//
// When it is ready, it prints one line of JSON on standard output; everything else goes to
// standard error. Every flag can be set in the environment: -data-dir is
// TENURE_ENGINE_DATA_DIR. The first SIGINT or SIGTERM stops it in order, the second at once.
// Exit codes: 0 stopped, 1 failure, 2 wrong usage.
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
	"strings"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/embeddedetcd"
)

func main() {
	os.Exit(run(cli.UntilSignal(), os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
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

// errUsage: package flag has printed the error.
var errUsage = errors.New("usage")

func parse(args []string, env func(string) (string, bool), stderr io.Writer) (settings, error) {
	var s settings
	var members string
	var verbose bool
	var tls embeddedetcd.TLS
	fs := flag.NewFlagSet("engine", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&s.Name, "name", "", `name of this member (default "engine")`)
	fs.StringVar(&s.DataDir, "data-dir", "", "data directory, created if missing (default: a temporary one)")
	fs.StringVar(&s.ClientURL, "client", "127.0.0.1:0", "URL or host:port to serve clients on; port 0 is a free one")
	fs.StringVar(&s.AdvertiseClientURL, "advertise", "", "client URL to advertise (default: that of -client)")
	fs.StringVar(&s.PeerURL, "peer", "", "URL or host:port to listen on for other members (default: this member's in -members; alone it does not listen)")
	fs.StringVar(&members, "members", "", "all members as name=peerURL,name=peerURL,… (default: this one alone)")
	fs.DurationVar(&s.Tick, "tick", 0, "time between heartbeats of the engine's leader (default 100ms)")
	fs.DurationVar(&s.Election, "election", 0, "how long the other members wait for a heartbeat (default 1s)")
	fs.DurationVar(&s.ReadyTimeout, "ready-timeout", 0, "how long to wait for a quorum (default 15s alone, 1m in a cluster)")
	fs.StringVar(&tls.Cert, "cert", "", "certificate file for clients and peers")
	fs.StringVar(&tls.Key, "key", "", "key file of the certificate")
	fs.StringVar(&tls.CA, "ca", "", "CA file for the certificates of clients and peers")
	fs.BoolVar(&s.Insecure, "insecure", false, "allow to listen beyond loopback without TLS")
	fs.BoolVar(&s.untilEOF, "until-eof", false, "stop when standard input ends, for programs that start members and may die")
	fs.BoolVar(&verbose, "v", false, "show etcd's own log")
	fs.Usage = func() {
		_, _ = fmt.Fprintf(stderr, "usage: engine [flags]\nRun one etcd member. A flag -x-y can be set as TENURE_ENGINE_X_Y.\n")
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
		return cli.ExitOK
	case errors.Is(err, errUsage):
		return cli.ExitUsage
	case err != nil:
		return fail(cli.ExitUsage, err)
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
		s.Logger.Info("stopped before the member was ready", "cause", context.Cause(ctx))
		return cli.ExitOK
	case errors.As(err, &wrong):
		return fail(cli.ExitUsage, err)
	case err != nil:
		return fail(cli.ExitFailure, err)
	}
	line := ready{Name: e.Name(), Endpoints: e.Endpoints(), Peer: e.PeerURL(), DataDir: e.DataDir(), PID: os.Getpid()}
	if err := json.NewEncoder(stdout).Encode(line); err != nil {
		return fail(cli.ExitFailure, errors.Join(fmt.Errorf("standard output: %w", err), e.Close()))
	}

	select {
	case <-ctx.Done():
		s.Logger.Info("stopping", "member", e.Name(), "cause", context.Cause(ctx))
		if err := e.Close(); err != nil {
			return fail(cli.ExitFailure, err)
		}
		return cli.ExitOK
	case err := <-e.Err():
		return fail(cli.ExitFailure, errors.Join(err, e.Close()))
	}
}
