package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/embeddedetcd"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/service"
	"github.com/tenurehq/tenure/store/etcd"
)

// serveReady is the line on standard output.
type serveReady struct {
	Addr       string   `json:"addr"`
	URL        string   `json:"url"`
	Deployment string   `json:"deployment"`
	Store      []string `json:"store,omitempty"` // for other instances: --store=etcd://…; none: the embedded engine is private
	PID        int      `json:"pid"`
}

// serving is what the flags of serve say.
type serving struct {
	access  auth.Config
	service service.Config
	limits  httpapi.Limits

	store    string
	prefix   string
	groups   string
	storeTLS struct{ ca, cert, key string }
	user     string
	password string // path of a file
	engine   embeddedetcd.Config
	traces   traces
}

func newServe() *cobra.Command {
	s := serving{limits: service.Limits()}
	var untilEOF bool
	var certName string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve elections over HTTP: campaign, renew, resign, watch, and an operator's verbs",
		Long: `Serve elections over HTTP. Without --store it runs an engine of its own, one member
of etcd in this process, which listens on no port and which only this user can reach;
--store=etcd://a:2379,b:2379,c:2379 uses a cluster, and then any number of instances
serve side by side. When it serves, it prints one line of JSON.

On a loopback address without credentials everybody on the machine may do everything.
Elsewhere it wants client certificates, JWT keys or a token file, with a policy, or
--insecure. GET /openapi.json describes the API. Every flag --x-y can be given as
TENURE_SERVE_X_Y.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.access.TLS.Name = auth.CertName(certName)
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			s.access.Log, s.service.Log, s.engine.Logger = log, log, log
			if err := s.validate(); err != nil {
				return cli.Exit(exitUsage, err)
			}
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			if untilEOF {
				go func() {
					_, _ = io.Copy(io.Discard, cmd.InOrStdin())
					cancel(errors.New("standard input ended"))
				}()
			}
			return s.run(ctx, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.access.Listen, "listen", defaultListen, "host:port to serve on, port 0 is a free one")
	f.BoolVar(&s.access.Insecure, "insecure", false, "listen beyond loopback without credentials, or with tokens in the clear")
	f.StringVar(&s.store, "store", "embedded", "embedded, or etcd://host:port,host:port (etcds:// with TLS)")
	f.StringVar(&s.prefix, "store-prefix", "", "prefix of every key (default /tenure)")
	f.StringVar(&s.storeTLS.ca, "store-ca", "", "file of the authority that signs the store's certificates")
	f.StringVar(&s.storeTLS.cert, "store-cert", "", "file of our certificate for the store")
	f.StringVar(&s.storeTLS.key, "store-key", "", "file of its key")
	f.StringVar(&s.user, "store-user", "", "user at the store")
	f.StringVar(&s.password, "store-password-file", "", "file with its password")
	f.StringVar(&s.engine.DataDir, "data-dir", "tenure-data", "where the embedded engine keeps its data; empty: in a temporary place, for experiments")
	f.StringVar(&s.engine.ClientURL, "engine-listen", "", "host:port on loopback where the embedded engine serves other processes, each of which can depose any leader (default: it is private)")
	f.StringVar(&s.groups, "groups", "open", "open: the first campaign creates a group; declared: an operator does")
	f.DurationVar(&s.service.TTL, "ttl", 0, "TTL of leases whose holder names none (default 8s)")
	f.DurationVar(&s.service.MaxTTL, "max-ttl", 0, "longest TTL (default 10m)")
	f.DurationVar(&s.service.CallTimeout, "call-timeout", 0, "longest call to the engine (default 2s)")
	f.StringVar(&s.access.TLS.Cert, "cert", "", "file of the service's certificate")
	f.StringVar(&s.access.TLS.Key, "key", "", "file of its key")
	f.StringVar(&s.access.TLS.ClientCAs, "client-ca", "", "file of the authorities whose client certificates are believed")
	f.StringVar(&certName, "cert-name", "", "where in a client certificate the node id stands: dns, cn or uri:PREFIX (default dns)")
	f.StringVar(&s.access.JWT.Keys, "jwt-keys", "", "file of public keys for JWTs, a JWK set or PEM")
	f.StringVar(&s.access.JWT.Issuer, "jwt-issuer", "", "issuer that a JWT must name")
	f.StringVar(&s.access.JWT.Audience, "jwt-audience", "", "audience that a JWT must name")
	f.StringSliceVar(&s.access.JWT.Algorithms, "jwt-algorithms", nil, "algorithms that are taken (default ES256,EdDSA)")
	f.StringVar(&s.access.JWT.Claim, "jwt-claim", "", "claim that is the node id (default sub)")
	f.StringVar(&s.access.Tokens, "tokens", "", "file of hashed static tokens")
	f.StringVar(&s.access.Policy, "policy", "", "file that says who may do what to which groups")
	f.StringVar(&s.access.Audit.Path, "audit", "", "file to write the audit to (default the log)")
	f.IntVar(&s.access.Limits.Rate, "rate", 0, "requests a second of one identity, renewals apart (default 500)")
	f.IntVar(&s.access.Limits.Campaigns, "campaigns", 0, "campaigns that use the engine at once (default 8 for each processor, at least 16)")
	f.IntVar(&s.access.Limits.GroupsEach, "groups-each", 0, "groups that one identity may hold (default 10000)")
	f.IntVar(&s.access.Limits.Candidates, "candidates", 0, "candidates of one group (default 1000)")
	f.IntVar(&s.access.Limits.StreamsEach, "streams-each", 0, "streams and waits that one identity may have open (default 100)")
	f.IntVar(&s.limits.Connections, "connections", s.limits.Connections, "how many connections may be open")
	f.DurationVar(&s.limits.Grace, "grace", s.limits.Grace, "how long requests under way may take when it stops")
	f.StringVar(&s.traces.endpoint, "otlp-endpoint", "", "where to send traces, such as http://127.0.0.1:4318 (default OTEL_EXPORTER_OTLP_ENDPOINT; without either none are made)")
	f.Float64Var(&s.traces.sample, "otlp-sample", 1, "which part of the requests is traced, 0 to 1, unless their caller has decided")
	f.BoolVar(&untilEOF, "until-eof", false, "stop when standard input ends, for programs that start a service and may die")
	cmd.AddCommand(newServeToken())
	return cmd
}

func (s *serving) validate() error {
	switch s.groups {
	case "open":
	case "declared":
		s.service.Declared = true
	default:
		return fmt.Errorf("groups: %q is neither open nor declared", s.groups)
	}
	if _, _, err := s.endpoints(); err != nil {
		return err
	}
	if err := s.traces.validate(); err != nil {
		return err
	}
	if s.limits.Connections < 1 || s.limits.Grace < 0 {
		return errors.New("connections must be at least 1, and grace not negative")
	}
	return s.access.Validate()
}

// endpoints are those of --store; none means the embedded engine.
func (s *serving) endpoints() (urls []string, secure bool, err error) {
	if s.store == "embedded" {
		return nil, false, nil
	}
	rest, plain := strings.CutPrefix(s.store, "etcd://")
	if !plain {
		if rest, secure = strings.CutPrefix(s.store, "etcds://"); !secure {
			return nil, false, fmt.Errorf("store: %q is neither embedded nor etcd://host:port,host:port", s.store)
		}
	}
	if secure != (s.storeTLS.ca != "") {
		return nil, false, errors.New("store: etcds:// and --store-ca come together")
	}
	for host := range strings.SplitSeq(rest, ",") {
		if host == "" {
			return nil, false, fmt.Errorf("store: %q names an empty host", s.store)
		}
		scheme := "http://"
		if secure {
			scheme = "https://"
		}
		urls = append(urls, scheme+host)
	}
	return urls, secure, nil
}

const storeOpen = 15 * time.Second

// run puts engine, store, gate and service together and takes them apart in the reverse
// order.
func (s *serving) run(ctx context.Context, stdout io.Writer) (err error) {
	urls, secure, err := s.endpoints()
	if err != nil {
		return cli.Exit(exitUsage, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if len(urls) == 0 {
		e, failed := embeddedetcd.Start(ctx, s.engine)
		if failed != nil {
			return engineError(failed)
		}
		var watching sync.WaitGroup
		watching.Go(func() {
			if lost, ok := <-e.Err(); ok {
				cancel(engineLostError{lost}) // an instance without its engine is of no use to anybody
			}
		})
		defer func() {
			if stop := e.Stop(); stop != nil {
				err = errors.Join(err, cli.Exit(exitFailure, stop))
			}
			watching.Wait()
		}()
		urls = e.Endpoints()
	}
	cfg := etcd.Config{Endpoints: urls, Prefix: s.prefix, Username: s.user}
	if secure {
		if cfg.TLS, err = s.clientTLS(); err != nil {
			return cli.Exit(exitUsage, err)
		}
	}
	if s.password != "" {
		text, err := os.ReadFile(s.password)
		if err != nil {
			return cli.Exit(exitUsage, fmt.Errorf("store password: %w", err))
		}
		cfg.Password = strings.TrimSpace(string(text))
	}
	octx, done := context.WithTimeout(ctx, storeOpen)
	store, err := etcd.Open(octx, cfg)
	done()
	if err != nil {
		return cli.Exit(exitUnavailable, err)
	}
	defer store.Shutdown()
	gate, err := auth.New(s.access)
	if err != nil {
		return cli.Exit(exitUsage, err)
	}
	defer gate.Close()
	return s.serve(ctx, stdout, store, gate, urls)
}

func (s *serving) serve(ctx context.Context, stdout io.Writer, store *etcd.Store, gate *auth.Gate, urls []string) error {
	s.service.Store, s.service.Gate = store, gate
	tracer, flush, err := s.traces.open(ctx, s.service.Log)
	if err != nil {
		return cli.Exit(exitUsage, err)
	}
	defer flush()
	s.service.Tracer = tracer
	if err := s.service.Validate(); err != nil {
		return cli.Exit(exitUsage, err)
	}
	svc, err := service.New(ctx, s.service)
	if err != nil {
		return cli.Exit(exitUnavailable, err)
	}
	defer svc.Close()
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", s.access.Listen)
	if err != nil {
		return cli.Exit(exitFailure, fmt.Errorf("listen: %w", err))
	}
	scheme := "http://"
	if gate.TLS() != nil {
		scheme = "https://"
	}
	addr := ln.Addr().String()
	line := serveReady{Addr: addr, URL: scheme + addr, Deployment: svc.Deployment(), PID: os.Getpid()}
	if s.store != "embedded" || s.engine.ClientURL != "" {
		line.Store = urls
	}
	if err := json.NewEncoder(stdout).Encode(line); err != nil {
		return cli.Exit(exitFailure, errors.Join(fmt.Errorf("standard output: %w", err), ln.Close()))
	}
	if err := svc.Serve(ctx, ln, gate.TLS(), s.limits); err != nil {
		return cli.Exit(exitFailure, err)
	}
	var lost engineLostError
	if errors.As(context.Cause(ctx), &lost) {
		return cli.Exit(exitFailure, lost)
	}
	return nil
}

// engineLostError: the embedded engine ended by itself.
type engineLostError struct{ error }

func (e engineLostError) Unwrap() error { return e.error }

func engineError(err error) error {
	var wrong *embeddedetcd.ConfigError
	switch {
	case errors.As(err, &wrong):
		return cli.Exit(exitUsage, err)
	case errors.Is(err, embeddedetcd.ErrNotReady):
		return cli.Exit(exitUnavailable, err)
	}
	return cli.Exit(exitFailure, err)
}

func (s *serving) clientTLS() (*tls.Config, error) {
	pem, err := os.ReadFile(s.storeTLS.ca)
	if err != nil {
		return nil, fmt.Errorf("store ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("store ca: %s holds no certificate", s.storeTLS.ca)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	if s.storeTLS.cert != "" || s.storeTLS.key != "" {
		pair, err := tls.LoadX509KeyPair(s.storeTLS.cert, s.storeTLS.key)
		if err != nil {
			return nil, fmt.Errorf("store certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
