package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	consulstore "github.com/tenurehq/tenure/store/consul"
	"github.com/tenurehq/tenure/store/etcd"
	"github.com/tenurehq/tenure/store/kubernetes"
	"github.com/tenurehq/tenure/store/postgres"
	redisstore "github.com/tenurehq/tenure/store/redis"
	"github.com/tenurehq/tenure/store/zookeeper"
)

type engine interface {
	store.Store
	Close()
}

// stores open the engines by the scheme of their URLs.
var stores = map[string]func(ctx context.Context, url string) (engine, error){
	"postgres":   opener(postgres.Parse, postgres.Open),
	"kubernetes": opener(kubernetes.Parse, kubernetes.Open),
	"consul":     opener(consulstore.Parse, consulstore.Open),
	"zookeeper":  opener(zookeeper.Parse, zookeeper.Open),
	"redis":      opener(redisstore.Parse, redisstore.Open),
}

func opener[C any, S engine](parse func(string) (C, error), open func(context.Context, C) (S, error)) func(context.Context, string) (engine, error) {
	return func(ctx context.Context, url string) (engine, error) {
		cfg, err := parse(url)
		if err != nil {
			return nil, err
		}
		return open(ctx, cfg)
	}
}

func openStore(ctx context.Context, c candidacy) (engine, error) {
	if c.Store == "" {
		return etcd.Open(ctx, etcd.Config{Endpoints: []string{"http://" + c.Engine}})
	}
	scheme, _, _ := strings.Cut(c.Store, "://")
	return stores[scheme](ctx, c.Store)
}

func leadByTenure(ctx context.Context, c candidacy, work func(context.Context, win)) (err error) {
	s, err := openStore(ctx, c)
	if err != nil {
		return err
	}
	defer s.Close()
	cfg := lease.Config{Candidate: tenure.Candidate{ID: c.ID}, Scope: store.Scope{c.Group}, Timing: lease.Timing{TTL: c.lease()}, Log: slog.New(slog.DiscardHandler)}
	node, err := lease.New(s, cfg)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, node.Close(closing))
	}()
	elector, err := node.Elector(c.Group)
	if err != nil {
		return err
	}
	return tenure.Lead(ctx, elector, func(ctx context.Context, term *tenure.Term) error {
		work(ctx, win{believes: func() bool { return term.Check() == nil }, stamp: term.Stamp()})
		return nil
	}, tenure.WithLog(cfg.Log))
}
