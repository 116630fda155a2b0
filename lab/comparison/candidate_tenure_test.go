package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/etcd"
)

func leadByTenure(ctx context.Context, c candidacy, work func(context.Context, win)) (err error) {
	store, err := etcd.Open(ctx, etcd.Config{Endpoints: []string{"http://" + c.Engine}})
	if err != nil {
		return err
	}
	defer store.Close()
	cfg := lease.Config{Candidate: tenure.Candidate{ID: c.ID}, Scope: store.Scope{c.Group}, Log: slog.New(slog.DiscardHandler)}
	if c.Short {
		cfg.Timing = lease.Timing{TTL: shortLease}
	}
	node, err := lease.New(store, cfg)
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
