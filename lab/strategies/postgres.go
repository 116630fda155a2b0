package strategies

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// schema is what the strategies on PostgreSQL need.
const schema = `CREATE TABLE strategy_flag (grp text, node int, is_leader bool, PRIMARY KEY (grp, node)); CREATE SEQUENCE strategy_token`

func prepare(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, schema)
	return err
}

// database is a connection that is made again when it has failed.
type database struct {
	Config
	sent *sent
	conn *pgx.Conn
}

func (d *database) Close() {}

// call makes one call with a timeout.
func (d *database) call(ctx context.Context, timeout time.Duration, count *atomic.Int64, do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if d.conn == nil || d.conn.IsClosed() {
		conn, err := pgx.Connect(ctx, "postgres://tenure@"+d.Links[0]+"/postgres?sslmode=disable")
		if err != nil {
			return err
		}
		d.conn = conn
	}
	count.Add(1)
	return do(ctx, d.conn)
}

// flag is a leader whose row says is_leader. The four mistakes: nobody clears the row of a process
// that has died, nobody notices that it has died, a write has no token, and two candidates can
// both read that nobody leads before they both set their rows.
type flag struct{ database }

func openFlag(_ context.Context, c Config, n *sent) (Elector, error) {
	return &flag{database{Config: c, sent: n}}, nil
}

func (f *flag) Campaign(ctx context.Context) (Term, error) {
	for {
		var leader int
		err := f.call(ctx, f.TTL, &f.sent.others, func(ctx context.Context, c *pgx.Conn) error {
			return c.QueryRow(ctx, "SELECT node FROM strategy_flag WHERE grp = $1 AND is_leader", f.Group).Scan(&leader)
		})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			pause(ctx, f.Think)
			return f.set(ctx)
		case err != nil:
			return Term{}, err
		case leader == f.ID: // of the process before this one
			return f.set(ctx)
		}
		if !pause(ctx, f.beat()) {
			return Term{}, ctx.Err()
		}
	}
}

func (f *flag) write(ctx context.Context, leads bool) error {
	return f.call(ctx, f.TTL, &f.sent.others, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "INSERT INTO strategy_flag VALUES ($1, $2, $3) ON CONFLICT (grp, node) DO UPDATE SET is_leader = $3", f.Group, f.ID, leads)
		return err
	})
}

// set makes this candidate the leader. It leads until its row says otherwise.
func (f *flag) set(ctx context.Context) (Term, error) {
	if err := f.write(ctx, true); err != nil {
		return Term{}, err
	}
	var lost atomic.Bool
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause(watching, f.beat()) {
			leads := true
			err := f.call(watching, f.TTL, &f.sent.beats, func(ctx context.Context, c *pgx.Conn) error {
				return c.QueryRow(ctx, "SELECT is_leader FROM strategy_flag WHERE grp = $1 AND node = $2", f.Group, f.ID).Scan(&leads)
			})
			lost.Store(err == nil && !leads) // an error is not taken for an answer
		}
	}()
	return Term{Believes: func() bool { return !lost.Load() }, Stop: func(ctx context.Context) error {
		stop()
		<-done
		return f.write(ctx, false)
	}}, nil
}

// advisory holds an advisory lock of a connection. PostgreSQL frees it when it sees that the
// connection has ended: at once if the process is killed, and after hours if it is cut off.
type advisory struct{ database }

func openAdvisory(_ context.Context, c Config, n *sent) (Elector, error) {
	return &advisory{database{Config: c, sent: n}}, nil
}

func (a *advisory) Campaign(ctx context.Context) (Term, error) {
	var token uint64
	const never = 24 * time.Hour
	err := a.call(ctx, never, &a.sent.others, func(ctx context.Context, c *pgx.Conn) error {
		if _, err := c.Exec(ctx, "SELECT pg_advisory_lock(hashtext($1))", a.Group); err != nil {
			return err
		}
		// On the connection that has the lock, so that a later holder gets a later number.
		a.sent.others.Add(1)
		return c.QueryRow(ctx, "SELECT nextval('strategy_token')").Scan(&token)
	})
	if err != nil {
		return Term{}, err
	}
	var lost atomic.Bool
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause(watching, a.beat()) && !lost.Load() {
			lost.Store(a.call(watching, a.beat(), &a.sent.beats, func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) }) != nil)
		}
	}()
	return Term{Token: token, Believes: func() bool { return !lost.Load() }, Stop: func(ctx context.Context) error {
		stop()
		<-done
		err := a.conn.Close(ctx) // this frees the lock, if the server hears it
		a.conn = nil
		if err != nil && strings.Contains(err.Error(), "closed") {
			return nil
		}
		return err
	}}, nil
}
