package postgres

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/store/kv"
)

const (
	// probeEvery is how often a watch that receives notifications reads the count of commits, to
	// notice a dead connection, and a pooler that lost the LISTEN.
	probeEvery = 2500 * time.Millisecond
	// pollEvery is how often a watch without notifications reads it.
	pollEvery = 250 * time.Millisecond
	// probeWithin bounds a probe.
	probeWithin = 2 * time.Second
	// giveUpAfter is how long a watch continues without the server before it ends.
	giveUpAfter = 10 * time.Second
)

// Watch implements kv.Driver with its own connection.
func (d *Driver) Watch(ctx context.Context, tick time.Duration, prefixes ...string) iter.Seq2[kv.Change, error] {
	return kv.Follow{Life: d.ctx, Tick: tick, Prefixes: prefixes, Retry: 100 * time.Millisecond, GiveUp: giveUpAfter}.Watch(ctx, func(f *kv.Follow) func(context.Context) error {
		w := &watch{Follow: f, d: d, ticked: time.Now()}
		return func(ctx context.Context) error {
			err := w.session(ctx)
			if f.Quiet() > giveUpAfter {
				err = d.classify(err)
			}
			return fmt.Errorf("postgres: watch: %w", err)
		}
	})
}

type watch struct {
	*kv.Follow
	d *Driver

	polls          bool      // notifications do not arrive
	known          int64     // count in the last notification
	probed         int64     // count that the last probe read
	ticked, looked time.Time // last tick and probe
}

// session watches on one connection.
func (w *watch) session(ctx context.Context) error {
	dial, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	cfg := w.d.pool.Config().ConnConfig
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(dial, cfg)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	// Through a pooler the process ids differ. In transaction mode a pooler loses the LISTEN.
	var pid uint32
	if err := conn.QueryRow(dial, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return err
	}
	if w.polls = w.polls || pid != conn.PgConn().PID(); !w.polls {
		if _, err := conn.Exec(dial, "LISTEN "+quote(w.d.cfg.Schema)); err != nil {
			return err
		}
	}
	if err := w.probe(ctx, conn); err != nil {
		return err
	}
	w.known = w.probed
	if err := w.Gap(); err != nil {
		return err
	}
	for {
		if err := w.wait(ctx, conn); err != nil {
			return err
		}
	}
}

// wait handles one notification, tick or probe.
func (w *watch) wait(ctx context.Context, conn *pgx.Conn) error {
	every := probeEvery
	if w.polls {
		every = pollEvery
	}
	due := w.looked.Add(every)
	if next := w.ticked.Add(w.Tick); w.Tick > 0 && next.Before(due) {
		due = next
	}
	until, cancel := context.WithDeadline(ctx, due)
	n, err := conn.WaitForNotification(until)
	cancel()
	switch {
	case err == nil:
		return w.notified(n.Payload)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case time.Now().Before(due):
		return err
	}
	if w.Tick > 0 && time.Since(w.ticked) >= w.Tick {
		w.ticked = time.Now()
		if err := w.Ticked(); err != nil {
			return err
		}
	}
	if time.Since(w.looked) < every {
		return nil
	}
	before := w.probed
	if err := w.probe(ctx, conn); err != nil {
		return err
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	for { // notifications that arrived with the answer to the probe
		n, err := conn.WaitForNotification(cancelled)
		if err != nil {
			break
		}
		if err := w.notified(n.Payload); err != nil {
			return err
		}
	}
	// Notifications arrive in the order of commits. If a probe saw a commit, and its notification
	// has not arrived one period later, notifications do not arrive at all.
	w.polls = w.polls || before > w.known
	if w.polls && w.probed != w.known {
		w.known = w.probed
		return w.Gap()
	}
	return nil
}

// probe reads the count of commits.
func (w *watch) probe(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	err := conn.QueryRow(ctx, w.d.count).Scan(&w.probed)
	w.looked = time.Now()
	if err == nil {
		w.Heard()
	}
	return err
}

// notified handles a payload: the count of a commit and a key that it changed.
func (w *watch) notified(payload string) error {
	w.Heard()
	count, key, _ := strings.Cut(payload, " ")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || key == "" {
		return nil //nolint:nilerr // another program notified this channel
	}
	w.known = max(w.known, n)
	return w.Changed(key)
}
