// Package engines opens the engine that a URL names: what --store means in every program.
//
// To add an engine, add one line to the list. Its module has
//
//	func Caps() store.Caps                                  // of the default configuration
//	func Parse(url string) (Config, error)                  // no error has the URL: it may have a password
//	func Open(ctx context.Context, cfg Config) (*Store, error)
package engines

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9/logging"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/consul"
	"github.com/tenurehq/tenure/store/etcd"
	"github.com/tenurehq/tenure/store/kubernetes"
	"github.com/tenurehq/tenure/store/postgres"
	"github.com/tenurehq/tenure/store/redis"
	"github.com/tenurehq/tenure/store/zookeeper"
)

// list has every engine with a store. Raft is none: it elects without a store.
var list = []Engine{
	with("etcd", "etcd://host:port,host:port/prefix", etcd.Caps(), readEtcd, etcd.Open),
	with("etcds", "etcds://host:port,host:port/prefix", etcd.Caps(), readEtcd, etcd.Open),
	of("postgres", "postgres://user@host:port/database", postgres.Caps(), postgres.Parse, postgres.Open),
	of("kubernetes", "kubernetes://namespace", kubernetes.Caps(), kubernetes.Parse, kubernetes.Open),
	of("consul", "consul://host:port/prefix", consul.Caps(), consul.Parse, consul.Open),
	of("consuls", "consuls://host:port/prefix", consul.Caps(), consul.Parse, consul.Open),
	of("zookeeper", "zookeeper://host:port,host:port/path", zookeeper.Caps(), zookeeper.Parse, zookeeper.Open),
	of("redis", "redis://host:port/0", redis.Caps(), redis.Parse, openRedis),
	of("rediss", "rediss://host:port/0", redis.Caps(), redis.Parse, openRedis),
}

// Engine is one that --store can name.
type Engine struct {
	Name string // the scheme of its URLs
	Form string // of its URLs
	Caps store.Caps

	check func(url string, o Options) error
	open  func(ctx context.Context, url string, o Options) (Store, error)
}

// Store is an open engine.
type Store interface {
	store.Store
	// Close disconnects. Sessions live on until they expire.
	Close()
}

// Options are settings that are not in the URL.
type Options struct {
	// Password, for the user in the URL or for Username.
	Password string
	// Username, Prefix and TLS are for etcd. Other engines have them in their URLs.
	Username, Prefix string
	TLS              *tls.Config
}

// All lists the engines.
func All() []Engine { return list }

// Find returns the engine of a URL. An unknown scheme is an error that lists the known ones.
func Find(raw string) (Engine, error) {
	scheme, _, _ := strings.Cut(raw, "://")
	if scheme == "postgresql" {
		scheme = "postgres"
	}
	var forms []string
	for _, e := range list {
		if e.Name == scheme && e.Name != raw {
			return e, nil
		}
		forms = append(forms, e.Form)
	}
	return Engine{}, &store.ArgumentError{Field: "store", Value: Redact(raw), Rule: "unknown engine; use " + strings.Join(forms, ", ")}
}

// Check finds errors in the URL and the options without connecting.
func Check(raw string, o Options) error {
	e, err := Find(raw)
	if err != nil {
		return err
	}
	return e.check(raw, o)
}

// Open connects to the engine of a URL.
func Open(ctx context.Context, raw string, o Options) (Store, error) {
	e, err := Find(raw)
	if err != nil {
		return nil, err
	}
	return e.open(ctx, raw, o)
}

// Etcd is the configuration of etcd's client; false: the URL names another engine.
func Etcd(raw string, o Options) (cfg etcd.Config, ok bool, err error) {
	e, err := Find(raw)
	if err != nil || e.Caps.Engine != "etcd" {
		return cfg, false, err
	}
	cfg, err = readEtcd(raw, o)
	return cfg, true, err
}

func readEtcd(raw string, o Options) (etcd.Config, error) {
	cfg, err := etcd.Parse(raw)
	cfg.Prefix, cfg.Username, cfg.Password = cmp.Or(o.Prefix, cfg.Prefix), cmp.Or(o.Username, cfg.Username), cmp.Or(o.Password, cfg.Password)
	cfg.TLS = cmp.Or(o.TLS, cfg.TLS)
	return cfg, err
}

// openRedis stops the log of the client library: the store returns every error.
func openRedis(ctx context.Context, cfg redis.Config) (*redis.Store, error) {
	logging.Disable()
	return redis.Open(ctx, cfg)
}

// of is an engine whose URL has everything but the password.
func of[C any, S Store](name, form string, caps store.Caps, parse func(string) (C, error), open func(context.Context, C) (S, error)) Engine {
	return with(name, form, caps, func(raw string, o Options) (cfg C, err error) {
		if o.Username != "" || o.Prefix != "" || o.TLS != nil {
			return cfg, &store.ArgumentError{Field: "store", Rule: fmt.Sprintf("user, prefix and certificates of %s are parts of its URL: %s", name, form)}
		}
		if raw, err = withPassword(raw, o.Password); err != nil {
			return cfg, err
		}
		return parse(raw)
	}, open)
}

// with is an engine that reads its options.
func with[C any, S Store](name, form string, caps store.Caps, read func(string, Options) (C, error), open func(context.Context, C) (S, error)) Engine {
	return Engine{
		Name: name, Form: form, Caps: caps,
		check: func(raw string, o Options) error {
			_, err := read(raw, o)
			return err
		},
		open: func(ctx context.Context, raw string, o Options) (Store, error) {
			cfg, err := read(raw, o)
			if err != nil {
				return nil, err
			}
			s, err := open(ctx, cfg)
			if err != nil {
				return nil, err // and not a Store that holds a nil pointer
			}
			return s, nil
		},
	}
}

// withPassword adds a password to the user of a URL.
func withPassword(raw, password string) (string, error) {
	if password == "" {
		return raw, nil
	}
	scheme, rest, _ := strings.Cut(raw, "://")
	user, rest, ok := strings.Cut(rest, "@")
	if !ok || strings.ContainsAny(user, ":/") {
		return "", &store.ArgumentError{Field: "store", Rule: "a password file needs a user without a password in the URL, such as " + scheme + "://user@host"}
	}
	return scheme + "://" + user + ":" + strings.ReplaceAll(url.QueryEscape(password), "+", "%20") + "@" + rest, nil
}

// Redact removes the user, the password and the parameters of a URL.
func Redact(raw string) string {
	raw, _, _ = strings.Cut(raw, "?")
	scheme, rest, ok := strings.Cut(raw, "://")
	if at := strings.LastIndexByte(rest, '@'); ok && at >= 0 {
		return scheme + "://…" + rest[at:]
	}
	return raw
}
