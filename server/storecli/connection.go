package storecli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/embeddedetcd"
	"github.com/tenurehq/tenure/server/engines"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
	"github.com/tenurehq/tenure/store/remote"
)

// DefaultListen is where `tenure serve` listens, and DefaultStore where every other
// command looks for it.
const (
	DefaultListen = "127.0.0.1:7400"
	DefaultStore  = "http://" + DefaultListen
)

// credentialVariable holds a bearer credential. It has no flag: other users can see arguments.
const credentialVariable = "TENURE_STORE_CREDENTIAL"

// Connection holds the flags that name a store and the caller's credentials.
type Connection struct {
	Store          string
	Dev            bool
	Prefix         string
	CA, Cert       string // paths of files, as are the next three
	Key            string
	PasswordFile   string
	CredentialFile string
	User           string
	Timeout        time.Duration

	credential string
}

// Flags adds the flags to a command. Each can also be set without the command's name:
// TENURE_STORE.
func (c *Connection) Flags(f *pflag.FlagSet, env cli.Env) {
	f.StringVar(&c.Store, "store", DefaultStore, "store of the elections: http(s)://host:port of a service, or an engine, such as etcd://host:port,host:port or postgres://user@host/database")
	f.BoolVar(&c.Dev, "dev", false, "run a temporary engine in this process instead, to try things out")
	f.DurationVar(&c.Timeout, "timeout", 10*time.Second, "longest time for one call to the store")
	f.StringVar(&c.CredentialFile, "store-credential-file", "", "file with the bearer credential for the service, read again for each call ("+credentialVariable+" holds the credential itself)")
	c.EngineFlags(f)
	cli.Shared(f, "store", "dev", "store-prefix", "store-ca", "store-cert", "store-key", "store-user", "store-password-file", "store-credential-file", "timeout")
	c.credential, _ = env(credentialVariable)
}

// EngineFlags adds the flags that a connection to an engine needs beside --store.
func (c *Connection) EngineFlags(f *pflag.FlagSet) {
	f.StringVar(&c.Prefix, "store-prefix", "", "prefix of every key in etcd (default: that of the URL, or /tenure)")
	f.StringVar(&c.CA, "store-ca", "", "CA file for the certificates of a service or etcd (default: the system's CAs)")
	f.StringVar(&c.Cert, "store-cert", "", "client certificate file for a service or etcd")
	f.StringVar(&c.Key, "store-key", "", "key file of the client certificate")
	f.StringVar(&c.User, "store-user", "", "etcd user (default: that of the URL)")
	f.StringVar(&c.PasswordFile, "store-password-file", "", "file with the password of the engine's user")
}

// Opened is a connected store.
type Opened struct {
	store.Store
	Where   string // its URLs
	Service bool   // it is reached through an election service

	closers []func()
}

// Close disconnects, and stops the engine of --dev. Sessions live until they expire.
func (o *Opened) Close() {
	for i := len(o.closers) - 1; i >= 0; i-- {
		o.closers[i]()
	}
}

// Open connects to the store. Its errors are ExitErrors. The engine of --dev logs to log.
func (c *Connection) Open(ctx context.Context, log *slog.Logger) (*Opened, error) {
	at, err := c.Target()
	if err != nil {
		return nil, err
	}
	o := &Opened{Where: strings.Join(at.URLs, ","), Service: at.Service}
	if c.Dev {
		if at.URLs, err = o.startEngine(ctx, log); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if at.Service {
		err = c.openService(ctx, o, at)
	} else {
		err = o.openEngine(ctx, at)
	}
	if err != nil {
		o.Close()
		if at.Service {
			err = at.withRemedy(err)
		}
		if err = exitError(err); !at.Service {
			err = CheckEngine(err)
		}
		return nil, err
	}
	return o, nil
}

// NoServiceError: no service listens at the address.
type NoServiceError struct {
	Err    error
	Remedy string
}

func (e *NoServiceError) Error() string { return e.Err.Error() + "\n" + e.Remedy }
func (e *NoServiceError) Unwrap() error { return e.Err }

// Target is a parsed --store.
type Target struct {
	URLs    []string // of the service, of etcd's members, or of another engine, without its password
	Service bool
	TLS     *tls.Config // nil: no TLS
	// Engine is the URL of an engine; "": a service, or an engine in this process, at URLs.
	Engine  string
	Options engines.Options // for Engine
}

// Open opens the engine.
func (t Target) Open(ctx context.Context) (engines.Store, error) {
	if t.Engine != "" {
		return engines.Open(ctx, t.Engine, t.Options)
	}
	s, err := etcd.Open(ctx, etcd.Config{Endpoints: t.URLs})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// withRemedy adds to the error of a service what the caller can do.
func (t Target) withRemedy(err error) error {
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return &NoServiceError{Err: plain(err), Remedy: t.remedy()}
	case errors.As(err, &unknown):
		return fmt.Errorf("%w\nset --store-ca (TENURE_STORE_CA) to the file of the CA that signed the certificate", plain(err))
	case errors.Is(err, store.ErrUnauthenticated):
		return fmt.Errorf("%w\nset --store-credential-file (TENURE_STORE_CREDENTIAL_FILE), or --store-cert and --store-key, to credentials that this service knows", plain(err))
	case t.TLS == nil && strings.Contains(err.Error(), "400 Bad Request"):
		return fmt.Errorf("%w\nif the service uses TLS, --store must begin with https://", plain(err))
	}
	return err
}

// remedy says how to get a service at the target.
func (t Target) remedy() string {
	_, host, _ := strings.Cut(t.URLs[0], "://")
	name, _, err := net.SplitHostPort(host)
	start := "start one there with `tenure serve`"
	if ip := net.ParseIP(name); err == nil && (name == "localhost" || ip != nil && ip.IsLoopback()) {
		start = "start one with `tenure serve`"
		if t.URLs[0] != DefaultStore {
			start = "start one with `tenure serve --listen=" + host + "`"
		}
	}
	return "no election service listens there: " + start +
		", or set --store (TENURE_STORE) to an engine (etcd://host:port) or to another service (http://host:port)"
}

// Target parses --store and checks that the other flags go with it. Its errors are
// ExitErrors.
func (c *Connection) Target() (Target, error) {
	if c.Dev {
		return Target{URLs: []string{"an engine of its own"}}, nil
	}
	scheme, rest, _ := strings.Cut(c.Store, "://")
	at := Target{Service: scheme == "http" || scheme == "https"}
	secure := scheme == "https" || scheme == "etcds"
	switch {
	case at.Service && (c.User != "" || c.PasswordFile != "" || c.Prefix != ""):
		return at, cli.Usage("store: --store-user, --store-password-file and --store-prefix are for engines, but the store is a service; use --store-credential-file or --store-cert")
	case !at.Service && c.CredentialFile != "":
		return at, cli.Usage("store: --store-credential-file is for a service, but the store is an engine; use --store-password-file or --store-cert")
	case !secure && (c.CA != "" || c.Cert != "" || c.Key != ""):
		return at, cli.Usage("store: %s:// does not use --store-ca, --store-cert and --store-key; use https:// or etcds://, or the parameters of the URL", scheme)
	}
	var err error
	if secure {
		if at.TLS, err = c.clientTLS(); err != nil {
			return at, cli.Exit(cli.ExitUsage, err)
		}
	}
	if !at.Service {
		return c.engine(at)
	}
	for host := range strings.SplitSeq(rest, ",") {
		host = strings.TrimPrefix(host, scheme+"://") // https://a:1,https://b:1 is https://a:1,b:1
		if host == "" || strings.Contains(host, "://") {
			return at, cli.Usage("store: %q has an empty host or mixes schemes; use http://host:port, or https://host:port,host:port for several instances", engines.Redact(c.Store))
		}
		at.URLs = append(at.URLs, scheme+"://"+host)
	}
	return at, nil
}

// engine completes the target of an engine.
func (c *Connection) engine(at Target) (Target, error) {
	if _, err := engines.Find(c.Store); err != nil {
		return at, cli.Usage("%w, or http://host:port of a service", err)
	}
	at.Engine, at.Options = c.Store, engines.Options{Username: c.User, Prefix: c.Prefix, TLS: at.TLS}
	if c.PasswordFile != "" {
		text, err := os.ReadFile(c.PasswordFile)
		if err != nil {
			return at, cli.Usage("store-password-file: %w", err)
		}
		at.Options.Password = strings.TrimSpace(string(text))
	}
	at.URLs = []string{engines.Redact(c.Store)}
	cfg, isEtcd, err := engines.Etcd(at.Engine, at.Options)
	if isEtcd {
		at.URLs = cfg.Endpoints
	} else if err == nil {
		err = engines.Check(at.Engine, at.Options)
	}
	if err != nil {
		return at, cli.Exit(cli.ExitUsage, err)
	}
	return at, nil
}

func (c *Connection) clientTLS() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("store-ca: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("store-ca: %s contains no certificate", c.CA)
		}
	}
	if c.Cert != "" || c.Key != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("store-cert and store-key: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

func (o *Opened) openEngine(ctx context.Context, at Target) error {
	s, err := at.Open(ctx)
	if err != nil {
		return err
	}
	// A service enforces policies and cordons itself; without one this process does.
	o.Store = guard.Guard(s, guard.Config{})
	o.closers = append(o.closers, s.Close)
	return nil
}

func (c *Connection) openService(ctx context.Context, o *Opened, at Target) error {
	cfg := remote.Config{URLs: at.URLs, TLS: at.TLS}
	switch {
	case c.CredentialFile != "":
		cfg.Bearer = c.readCredential
		if _, err := c.readCredential(ctx); err != nil {
			return cli.Exit(cli.ExitUsage, err)
		}
	case c.credential != "":
		cfg.Bearer = func(context.Context) (string, error) { return c.credential, nil }
	}
	s, err := remote.Open(ctx, cfg)
	if err != nil {
		return err
	}
	o.Store, o.closers = s, append(o.closers, s.Close)
	return nil
}

// readCredential reads the file for each call, because short-lived credentials are replaced
// there.
func (c *Connection) readCredential(context.Context) (string, error) {
	text, err := os.ReadFile(c.CredentialFile)
	if err != nil {
		return "", fmt.Errorf("store-credential-file: %w", err)
	}
	credential := strings.TrimSpace(string(text))
	if credential == "" {
		return "", fmt.Errorf("store-credential-file: %s is empty", c.CredentialFile)
	}
	return credential, nil
}

// startEngine runs the engine of --dev in a temporary directory.
func (o *Opened) startEngine(ctx context.Context, log *slog.Logger) ([]string, error) {
	e, err := embeddedetcd.Start(ctx, embeddedetcd.Config{Logger: log})
	if err != nil {
		return nil, EngineError(err)
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		if err, ok := <-e.Err(); ok {
			log.Error("the engine of --dev failed", "err", err)
		}
	})
	o.closers = append(o.closers, func() {
		if err := e.Close(); err != nil {
			log.Warn("cannot stop the engine of --dev", "err", err)
		}
		watching.Wait()
	})
	return e.Endpoints(), nil
}
