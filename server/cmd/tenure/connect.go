package main

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

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/embeddedetcd"
	"github.com/tenurehq/tenure/store/etcd"
	"github.com/tenurehq/tenure/store/remote"
)

// connection is where the elections are, and who asks: the flags that all verbs have
// which look at them or take part.
type connection struct {
	store        string
	dev          bool
	prefix       string
	ca, cert     string // paths of files, as the next three are
	key          string
	passwordFile string
	tokenFile    string
	user         string
	timeout      time.Duration

	token string // TENURE_STORE_TOKEN: a secret has no place among arguments
}

// storeToken is the variable of the token itself.
const storeToken = "TENURE_STORE_TOKEN"

// defaultListen is where serve listens, and defaultStore where all others look for it.
const (
	defaultListen = "127.0.0.1:7400"
	defaultStore  = "http://" + defaultListen
)

// flags adds them. Each is also a variable without a verb in its name: TENURE_STORE.
func (c *connection) flags(f *pflag.FlagSet, env func(string) (string, bool)) {
	f.StringVar(&c.store, "store", defaultStore, "where the elections are: http(s)://host:port of a service, or etcd://host:port,host:port (etcds:// with TLS)")
	f.BoolVar(&c.dev, "dev", false, "an engine of this process's own instead, which ends with it: to try things out")
	f.StringVar(&c.prefix, "store-prefix", "", "prefix of every key in etcd (default /tenure)")
	f.StringVar(&c.ca, "store-ca", "", "file of the authority that signs the store's certificates (default the system's)")
	f.StringVar(&c.cert, "store-cert", "", "file of our certificate for the store")
	f.StringVar(&c.key, "store-key", "", "file of its key")
	f.StringVar(&c.user, "store-user", "", "user at etcd")
	f.StringVar(&c.passwordFile, "store-password-file", "", "file with its password")
	f.StringVar(&c.tokenFile, "store-token-file", "", "file with the token that says to the service who we are; read anew for each call ("+storeToken+": the token itself)")
	f.DurationVar(&c.timeout, "timeout", 10*time.Second, "how long one call to the store may take")
	cli.Shared(f, "store", "dev", "store-prefix", "store-ca", "store-cert", "store-key", "store-user", "store-password-file", "store-token-file", "timeout")
	c.token, _ = env(storeToken)
}

// opened is a store, and the engine of --dev behind it.
type opened struct {
	lease.Store
	// Where it is, for people.
	Where string
	// Service: it is reached through an election service.
	Service bool

	close []func()
}

// Close gives back what open has opened. Sessions live on until they expire.
func (o *opened) Close() {
	for i := len(o.close) - 1; i >= 0; i-- {
		o.close[i]()
	}
}

// open connects. Its errors name the endpoints and are exitErrors; log hears what an
// engine of --dev has to say.
func (c *connection) open(ctx context.Context, log *slog.Logger) (*opened, error) {
	at, err := c.target()
	if err != nil {
		return nil, cli.Exit(exitUsage, err)
	}
	o := &opened{Where: strings.Join(at.urls, ",")}
	if c.dev {
		if at.urls, err = o.start(ctx, log); err != nil {
			return nil, err
		}
	}
	if at.service {
		err = c.openService(ctx, o, at)
	} else {
		err = c.openEtcd(ctx, o, at)
	}
	if err != nil {
		o.Close()
		if at.service && errors.Is(err, syscall.ECONNREFUSED) {
			err = &nobodyError{err, at.start()}
		}
		return nil, storeError(err)
	}
	return o, nil
}

// nobodyError: nobody listens where the service should be.
type nobodyError struct {
	error
	todo string
}

func (e *nobodyError) Error() string { return e.error.Error() + "\n" + e.todo }
func (e *nobodyError) Unwrap() error { return e.error }

// start says how to come to a service at the target.
func (t target) start() string {
	_, host, _ := strings.Cut(t.urls[0], "://")
	name, _, err := net.SplitHostPort(host)
	start := "start one there with `tenure serve`"
	if ip := net.ParseIP(name); err == nil && (name == "localhost" || ip != nil && ip.IsLoopback()) {
		start = "start one with `tenure serve`"
		if t.urls[0] != defaultStore {
			start = "start one with `tenure serve --listen=" + host + "`"
		}
	}
	return "no election service listens there: " + start +
		", or name an engine (--store=etcd://host:port) or another service (--store=http://host:port); TENURE_STORE says the same"
}

// target is what --store says.
type target struct {
	urls    []string
	service bool
	tls     *tls.Config // nil: in the clear
}

func (c *connection) target() (target, error) {
	if c.dev {
		return target{urls: []string{"an engine of its own"}}, nil
	}
	scheme, rest, ok := strings.Cut(c.store, "://")
	at := target{service: scheme == "http" || scheme == "https"}
	if !ok || !at.service && scheme != "etcd" && scheme != "etcds" {
		return at, fmt.Errorf("store: %q is none of http://host:port, https://host:port, etcd://host:port,host:port and etcds://host:port,host:port", clean(c.store))
	}
	secure := scheme == "https" || scheme == "etcds"
	if at.service && (c.user != "" || c.passwordFile != "" || c.prefix != "") {
		return at, errors.New("store: --store-user, --store-password-file and --store-prefix are etcd's, and the store is a service: say --store-token-file or --store-cert")
	}
	if !at.service && c.tokenFile != "" {
		return at, errors.New("store: --store-token-file is for a service, and the store is etcd: say --store-user and --store-password-file, or --store-cert")
	}
	if !secure && (c.ca != "" || c.cert != "" || c.key != "") {
		return at, fmt.Errorf("store: certificates are given, and %s:// does not use them: write %ss://", scheme, scheme)
	}
	to := "http://"
	if secure {
		to = "https://"
	}
	for host := range strings.SplitSeq(rest, ",") {
		// https://a:1,https://b:1 and https://a:1,b:1 are the same.
		host = strings.TrimPrefix(host, scheme+"://")
		if host == "" || strings.Contains(host, "://") {
			return at, fmt.Errorf("store: %q names an empty host, or hosts of two kinds", clean(c.store))
		}
		at.urls = append(at.urls, to+host)
	}
	if !secure {
		return at, nil
	}
	var err error
	at.tls, err = c.clientTLS()
	return at, err
}

// clean drops what may be a password.
func clean(s string) string {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		return "…" + s[i:]
	}
	return s
}

func (c *connection) clientTLS() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.ca != "" {
		pem, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, fmt.Errorf("store-ca: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("store-ca: %s holds no certificate", c.ca)
		}
	}
	if c.cert != "" || c.key != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("store-cert and store-key: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

func (c *connection) openEtcd(ctx context.Context, o *opened, at target) error {
	cfg, err := c.etcd(at)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	s, err := etcd.Open(ctx, cfg)
	if err != nil {
		return err
	}
	// A service enforces the rules of operators. Without one, this process does.
	o.Store = lease.Guard(s, lease.GuardConfig{})
	o.close = append(o.close, s.Shutdown)
	return nil
}

func (c *connection) etcd(at target) (etcd.Config, error) {
	cfg := etcd.Config{Endpoints: at.urls, Prefix: c.prefix, TLS: at.tls, Username: c.user}
	if c.passwordFile != "" {
		text, err := os.ReadFile(c.passwordFile)
		if err != nil {
			return cfg, cli.Exit(exitUsage, fmt.Errorf("store-password-file: %w", err))
		}
		cfg.Password = strings.TrimSpace(string(text))
	}
	return cfg, nil
}

func (c *connection) openService(ctx context.Context, o *opened, at target) error {
	cfg := remote.Config{URLs: at.urls, TLS: at.tls}
	switch {
	case c.tokenFile != "":
		cfg.Bearer = c.readToken
		if _, err := c.readToken(ctx); err != nil {
			return cli.Exit(exitUsage, err)
		}
	case c.token != "":
		cfg.Bearer = func(context.Context) (string, error) { return c.token, nil }
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	s, err := remote.Open(ctx, cfg)
	if err != nil {
		return err
	}
	o.Store, o.Service, o.close = s, true, append(o.close, s.Shutdown)
	return nil
}

// readToken reads it for each call, for whoever issues short-lived ones replaces the
// file.
func (c *connection) readToken(context.Context) (string, error) {
	text, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return "", fmt.Errorf("store-token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("store-token-file: %s is empty", c.tokenFile)
	}
	return token, nil
}

// start runs the engine of --dev: alone, on loopback, in a directory that is removed
// with it.
func (o *opened) start(ctx context.Context, log *slog.Logger) ([]string, error) {
	e, err := embeddedetcd.Start(ctx, embeddedetcd.Config{Logger: log})
	if err != nil {
		return nil, engineError(err)
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		if lost, ok := <-e.Err(); ok {
			log.Error("the engine of --dev has ended", "err", lost)
		}
	})
	o.close = append(o.close, func() {
		if err := e.Stop(); err != nil {
			log.Warn("the engine of --dev did not stop in order", "err", err)
		}
		watching.Wait()
	})
	return e.Endpoints(), nil
}
