package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/hashicorp/consul/api"
	"github.com/jackc/pgx/v5"
)

// The peers of an engine's benchmark that are not in the tables of the page.
const (
	consulAPI    = "consul api Lock"
	zkLock       = "go-zookeeper Lock"
	advisoryLock = "pg_advisory_lock"
)

// serve runs work until ctx or the lock ends.
func serve(ctx context.Context, lost <-chan struct{}, work func(context.Context, win)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-lost:
			cancel()
		case <-ctx.Done():
		}
	}()
	work(ctx, win{believes: func() bool { return ctx.Err() == nil }})
}

// leadByConsul makes the lock delay as short as the API allows: its default of 15 s would be most of
// a failover.
func leadByConsul(ctx context.Context, c candidacy, work func(context.Context, win)) error {
	client, err := api.NewClient(&api.Config{Address: c.Engine})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		lock, err := client.LockOpts(&api.LockOptions{Key: c.Group, SessionName: c.ID, SessionTTL: c.lease().String(), LockDelay: time.Millisecond})
		if err != nil {
			return err
		}
		lost, err := lock.Lock(ctx.Done())
		if err != nil {
			return err
		}
		if lost == nil {
			return nil // stopped
		}
		serve(ctx, lost, work)
		_ = lock.Unlock() // it may be lost
	}
	return nil
}

// leadByZooKeeper ends the work when the connection is lost, as the documentation of ZooKeeper
// advises.
func leadByZooKeeper(ctx context.Context, c candidacy, work func(context.Context, win)) error {
	conn, events, err := zk.Connect([]string{c.Engine}, c.lease(), zk.WithLogger(silent{}))
	if err != nil {
		return err
	}
	defer conn.Close()
	lock := zk.NewLock(conn, "/locks/"+c.Group, zk.WorldACL(zk.PermAll))
	// Lock takes no context.
	proceed := context.AfterFunc(ctx, conn.Close)
	if err := lock.Lock(); err != nil {
		return err
	}
	proceed()
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		for e := range events {
			if e.State == zk.StateDisconnected || e.State == zk.StateExpired {
				return
			}
		}
	}()
	serve(ctx, lost, work)
	return lock.Unlock()
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// leadByAdvisoryLock holds a lock of a connection. PostgreSQL releases it when it sees that the
// connection is closed; a leader that is cut off without a word keeps it.
func leadByAdvisoryLock(ctx context.Context, c candidacy, work func(context.Context, win)) error {
	conn, err := pgx.Connect(ctx, "postgres://tenure@"+c.Engine+"/postgres?sslmode=disable")
	if err != nil {
		return err
	}
	closing := func() context.Context {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		context.AfterFunc(ctx, cancel)
		return ctx
	}
	defer func() { _ = conn.Close(closing()) }()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtext($1))", c.Group); err != nil {
		return err
	}
	// Belief ends when a query fails.
	lost, over := make(chan struct{}), make(chan struct{})
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		for {
			select {
			case <-over:
				return
			case <-time.After(c.lease() / 3):
			}
			ctx, cancel := context.WithTimeout(ctx, c.lease()/3)
			err := conn.Ping(ctx)
			cancel()
			if err != nil {
				close(lost)
				return
			}
		}
	}()
	serve(ctx, lost, work)
	close(over)
	<-checked
	_, err = conn.Exec(closing(), "SELECT pg_advisory_unlock(hashtext($1))", c.Group)
	return errors.Join(err, ctx.Err())
}
