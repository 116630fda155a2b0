package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/pulse"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/console"
	"github.com/tenurehq/tenure/server/embeddedetcd"
	"github.com/tenurehq/tenure/server/engines"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/service"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
)

// serveReady is the line on standard output.
type serveReady struct {
	Addr       string   `json:"addr"`
	URL        string   `json:"url"`
	Deployment string   `json:"deployment"`
	Store      []string `json:"store,omitempty"` // for other instances; none: the embedded engine is private
	PID        int      `json:"pid"`
}

// server holds the flags of serve.
type server struct {
	access  auth.Config
	service service.Config
	limits  httpapi.Limits
	conn    storecli.Connection
	groups  string
	socket  string // of ServePeers; "": none
	engine  embeddedetcd.Config
	traces  traces
}

const embedded = "embedded"

func newServe() *cobra.Command {
	s := server{limits: service.Limits()}
	var untilEOF bool
	var certName string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve elections over HTTP.",
		Long: `Serve elections over HTTP. Without --store it runs an embedded engine: one member of etcd
in this process, which listens on no port and which only this user can reach.
--store=etcd://a:2379,b:2379,c:2379 or --store=postgres://app@db/elections uses an engine of
yours; then any number of instances can serve side by side. When the service is ready, it
prints one line of JSON, logs a command to try, and notifies systemd (Type=notify).

On a loopback address without credentials, everybody on the machine may do everything. On
other addresses it needs client certificates, JWT keys or a credential file, with a policy, or
--insecure. GET /openapi.json describes the API. The web console is at /ui/.`,
		Example: `  tenure serve
  tenure serve --listen=127.0.0.1:7400 --store=etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  tenure serve --listen=10.0.0.9:7400 --cert=tls.crt --key=tls.key --credentials=credentials.json --policy=policy.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.access.TLS.Name = auth.CertName(certName)
			log := storecli.Logger(cmd.ErrOrStderr(), slog.LevelInfo)
			s.access.Log, s.service.Log, s.engine.Logger = log, log, log
			at, err := s.validate()
			if err != nil {
				return cli.Exit(cli.ExitUsage, err)
			}
			ctx, cancel := cli.UntilEOF(cmd, untilEOF)
			defer cancel()
			return s.run(ctx, cmd.OutOrStdout(), at)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.access.Listen, "listen", storecli.DefaultListen, "host:port to listen on; port 0 is a free one")
	f.StringVar(&s.socket, "keeper-socket", "", "unix socket for processes of this host: a session that a process opens there ends as soon as the process has died; needs Linux 6.5 (default: none)")
	f.BoolVar(&s.access.Insecure, "insecure", false, "allow other hosts without credentials, or with credentials but without TLS")
	f.StringVar(&s.conn.Store, "store", embedded, "embedded, or an engine, such as etcd://host:port,host:port (etcds:// with TLS) or postgres://user@host/database")
	s.conn.EngineFlags(f)
	f.StringVar(&s.engine.DataDir, "data-dir", "tenure-data", "data directory of the embedded engine; empty: a temporary one, for experiments")
	f.StringVar(&s.engine.ClientURL, "engine-listen", "", "loopback host:port on which the embedded engine serves other processes, each of which can depose any leader (default: none)")
	f.StringVar(&s.groups, "groups", "open", "open: the first campaign creates a group; declared: an operator does")
	f.DurationVar(&s.service.TTL, "ttl", 0, "TTL of leases whose holder gives none (default 8s)")
	f.DurationVar(&s.service.MaxTTL, "max-ttl", 0, "longest TTL (default 10m)")
	f.DurationVar(&s.service.CallTimeout, "call-timeout", 0, "timeout of one call to the engine (default 2s)")
	f.StringVar(&s.service.Ledger, "ledger", "", "URL of a ledger whose refused writes the console shows (default: none)")
	f.StringVar(&s.access.TLS.Cert, "cert", "", "certificate file of the service")
	f.StringVar(&s.access.TLS.Key, "key", "", "key file of the certificate")
	f.StringVar(&s.access.TLS.ClientCAs, "client-ca", "", "CA file for client certificates")
	f.StringVar(&certName, "cert-name", "", "which part of a client certificate is the node id: dns, cn or uri:PREFIX (default dns)")
	f.StringVar(&s.access.JWT.Keys, "jwt-keys", "", "file of public keys for JWTs, a JWK set or PEM")
	f.StringVar(&s.access.JWT.Issuer, "jwt-issuer", "", "required issuer of JWTs")
	f.StringVar(&s.access.JWT.Audience, "jwt-audience", "", "required audience of JWTs")
	f.StringSliceVar(&s.access.JWT.Algorithms, "jwt-algorithms", nil, "accepted algorithms (default ES256,EdDSA)")
	f.StringVar(&s.access.JWT.Claim, "jwt-claim", "", "claim that is the node id (default sub)")
	f.StringVar(&s.access.Credentials, "credentials", "", "file of hashed bearer credentials; \"tenure serve credential\" makes them")
	f.StringVar(&s.access.Policy, "policy", "", "file that says who may do what to which groups")
	f.StringVar(&s.access.Audit.Path, "audit", "", "file of the audit log (default: the log)")
	f.IntVar(&s.access.Limits.Rate, "rate", 0, "requests per second of one identity, without renewals (default 500)")
	f.IntVar(&s.access.Limits.Campaigns, "campaigns", 0, "campaigns that use the engine at once (default 8 per processor, at least 16)")
	f.IntVar(&s.access.Limits.GroupsEach, "groups-each", 0, "groups that one identity may hold (default 10000)")
	f.IntVar(&s.access.Limits.Candidates, "candidates", 0, "candidates of one group (default 1000)")
	f.IntVar(&s.access.Limits.StreamsEach, "streams-each", 0, "open streams and waits of one identity (default 100)")
	f.IntVar(&s.limits.Connections, "connections", s.limits.Connections, "open connections")
	f.DurationVar(&s.limits.Grace, "grace", s.limits.Grace, "time for current requests when it stops")
	f.StringVar(&s.traces.endpoint, "otlp-endpoint", "", "URL to send traces to, such as http://127.0.0.1:4318 (default OTEL_EXPORTER_OTLP_ENDPOINT; without either, no traces)")
	f.Float64Var(&s.traces.sample, "otlp-sample", 1, "fraction of requests to trace, 0 to 1, unless the caller has decided")
	f.BoolVar(&untilEOF, "until-eof", false, "stop when standard input ends, for programs that start a service and may die")
	cmd.AddCommand(newServeCredential())
	return cmd
}

// validate checks the flags and returns the target of --store; the zero Target is the
// embedded engine.
func (s *server) validate() (at storecli.Target, err error) {
	if s.groups != "open" && s.groups != "declared" {
		return at, fmt.Errorf("groups: %q is neither open nor declared", s.groups)
	}
	s.service.Declared = s.groups == "declared"
	if s.conn.Store != embedded {
		if _, err := engines.Find(s.conn.Store); err != nil {
			return at, fmt.Errorf("%w, or embedded", err)
		}
		if at, err = s.conn.Target(); err != nil {
			return at, err
		}
		if at.TLS != nil && s.conn.CA == "" {
			return at, errors.New("store: etcds:// needs --store-ca")
		}
	}
	if s.limits.Connections < 1 || s.limits.Grace < 0 {
		return at, errors.New("connections must be at least 1, and grace must not be negative")
	}
	return at, errors.Join(s.traces.validate(), s.access.Validate())
}

const openTimeout = 15 * time.Second

// run starts engine, store, authentication and service, and stops them in reverse order.
func (s *server) run(ctx context.Context, stdout io.Writer, at storecli.Target) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.conn.Store == embedded {
		e, failed := embeddedetcd.Start(ctx, s.engine)
		if failed != nil {
			return storecli.EngineError(failed)
		}
		var watching sync.WaitGroup
		watching.Go(func() {
			if lost, ok := <-e.Err(); ok {
				cancel(engineLostError{lost})
			}
		})
		defer func() {
			if stop := e.Close(); stop != nil {
				err = errors.Join(err, cli.Exit(cli.ExitFailure, stop))
			}
			watching.Wait()
		}()
		at.URLs = e.Endpoints()
	}
	octx, done := context.WithTimeout(ctx, openTimeout)
	engine, err := at.Open(octx)
	done()
	if err != nil {
		return storecli.CheckEngine(cli.Exit(cli.ExitUnavailable, err))
	}
	defer engine.Close()
	if loses := engine.Caps().Loses; loses != "" {
		s.service.Log.Warn("the engine can lose what it acknowledged; fence every sink", "engine", engine.Caps().Engine, "loses", loses)
	}
	gate, err := auth.New(s.access)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	defer gate.Close()
	return s.serve(ctx, stdout, engine, gate, at.URLs)
}

func (s *server) serve(ctx context.Context, stdout io.Writer, engine store.Store, gate *auth.Gate, urls []string) error {
	s.service.Store, s.service.Gate = engine, gate
	tracer, flush, err := s.traces.open(ctx, s.service.Log)
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	defer flush()
	s.service.Tracer = tracer
	if s.service.Console, err = console.Handler(); err != nil {
		return cli.Exit(cli.ExitFailure, err)
	}
	if err := s.service.Validate(); err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	svc, err := service.New(ctx, s.service)
	if err != nil {
		return cli.Exit(cli.ExitUnavailable, err)
	}
	defer svc.Close()
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", s.access.Listen)
	if err != nil {
		return cli.Exit(cli.ExitFailure, fmt.Errorf("%w\nstop the process that uses the address (another `tenure serve`?), or choose another one with --listen", err))
	}
	var peers *net.UnixListener
	if s.socket != "" {
		if peers, err = pulse.ListenPeers(s.socket); err != nil {
			return cli.Exit(cli.ExitFailure, errors.Join(fmt.Errorf("%w; choose another path with --keeper-socket, or omit it: then the TTL applies after a crash", err), ln.Close()))
		}
	}
	scheme := "http://"
	if gate.TLS() != nil {
		scheme = "https://"
	}
	addr := ln.Addr().String()
	line := serveReady{Addr: addr, URL: scheme + addr, Deployment: svc.Deployment(), PID: os.Getpid()}
	if s.conn.Store != embedded || s.engine.ClientURL != "" {
		line.Store = urls
	}
	if err := json.NewEncoder(stdout).Encode(line); err != nil {
		return cli.Exit(cli.ExitFailure, errors.Join(fmt.Errorf("standard output: %w", err), ln.Close()))
	}
	try := "tenure exec billing -- sh -c 'echo $TENURE_NODE leads; sleep 5'"
	if line.URL != storecli.DefaultStore {
		try = strings.Replace(try, "billing", "--store="+line.URL+" billing", 1)
	}
	s.service.Log.Info("ready", "url", line.URL, "console", line.URL+"/ui/", "try", try)
	cli.Notify("READY=1")
	defer context.AfterFunc(ctx, func() { cli.Notify("STOPPING=1") })()
	if err := s.serveAll(ctx, svc, ln, peers, gate); err != nil {
		return cli.Exit(cli.ExitFailure, err)
	}
	var lost engineLostError
	if errors.As(context.Cause(ctx), &lost) {
		return cli.Exit(cli.ExitFailure, lost)
	}
	return nil
}

// serveAll serves on the address, and on the socket for peers if there is one, until ctx ends or
// one of them fails.
func (s *server) serveAll(ctx context.Context, svc *service.Service, ln net.Listener, peers *net.UnixListener, gate *auth.Gate) error {
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	var failed error
	if peers != nil {
		serving.Go(func() {
			defer cancel()
			failed = svc.ServePeers(ctx, peers, s.limits)
		})
	}
	err := svc.Serve(ctx, ln, gate.TLS(), s.limits)
	cancel()
	serving.Wait()
	return errors.Join(err, failed)
}

// engineLostError: the embedded engine failed, so the service cannot continue.
type engineLostError struct{ error }

func (e engineLostError) Unwrap() error { return e.error }
