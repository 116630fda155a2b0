package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// Driver is a kv.Driver for PostgreSQL.
type Driver struct {
	cfg  Config
	pool *pgxpool.Pool
	own  bool // Close closes the pool
	// loses says what the server can lose, judging by its settings.
	loses string
	// They are not used as prepared statements, which a transaction pooler would lose.
	commit, list, count string
	ctx                 context.Context // ends with Close
	cancel              context.CancelFunc
}

var _ kv.Driver = (*Driver)(nil)

// NewDriver returns the driver without a store. It connects with its first call. The schema must
// exist.
func NewDriver(cfg Config) (*Driver, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	schema := quote(cfg.Schema)
	d := &Driver{
		cfg: cfg, pool: cfg.Pool, loses: loses,
		commit: "CALL " + schema + ".commit($1, $2, $3, $4, $5, $6, $7, $8, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
		list:   "SELECT key, value, version, created FROM " + schema + ".items WHERE key >= $1 AND key < $2 AND key > $3 ORDER BY key LIMIT $4",
		count:  "SELECT version FROM " + schema + ".items WHERE key = ''",
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	if d.pool == nil {
		pc, err := parse(cfg.URL)
		if err != nil {
			return nil, err
		}
		if d.pool, err = pgxpool.NewWithConfig(d.ctx, pc); err != nil {
			return nil, fmt.Errorf("postgres: %w", err)
		}
		d.own = true
	}
	return d, nil
}

// Close ends watches and closes the connections, except those of Config.Pool.
func (d *Driver) Close() {
	d.cancel()
	if d.own {
		d.pool.Close()
	}
}

// Caps implements kv.Driver.
func (d *Driver) Caps() kv.Caps {
	return kv.Caps{Engine: "postgres", MinTTL: d.cfg.MinTTL, MaxTTL: maxTTL, Lateness: lateness, Keys: maxKeys, Loses: d.loses, Prefix: d.cfg.Schema + ".items "}
}

// Conditions of the procedure that are not versions.
const (
	none       = -2
	anyVersion = -1 // kv.Any
)

// step is the condition and the write of one key.
type step struct {
	want  int64
	act   int32 // 0: nothing, 1: set, 2: delete
	value []byte
}

// Commit implements kv.Driver with one call of the procedure.
func (d *Driver) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	steps := map[string]*step{}
	at := func(key string) *step {
		if steps[key] == nil {
			steps[key] = &step{want: none}
		}
		return steps[key]
	}
	for _, c := range t.If {
		s, want := at(c.Key), int64(c.Version)
		switch {
		case s.want == none, s.want == anyVersion && want > 0:
			s.want = want
		case s.want != want && (want != anyVersion || s.want == 0):
			// The conditions contradict each other.
			r, err := d.Commit(ctx, kv.Txn{Read: slices.Concat(t.Read, t.Else)})
			r.OK = false
			return r, err
		}
	}
	var announce []string
	for _, w := range t.Then {
		s := at(w.Key)
		if s.act, s.value = 1, w.Value; w.Value == nil {
			s.act = 2
		}
		if !w.Quiet {
			announce = append(announce, w.Key)
		}
	}
	var keys []string
	for k := range steps {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	wants, acts, values := make([]int64, len(keys)), make([]int32, len(keys)), make([][]byte, len(keys))
	for i, k := range keys {
		s := steps[k]
		wants[i], acts[i], values[i] = s.want, s.act, s.value
	}
	// Counted commits run one after the other. Keep-alives are not counted: losing one does no harm.
	counted := len(announce) > 0 || len(t.Then) > 1
	a, err := d.procedure(ctx, "commit", len(t.Then) == 0, keys, wants, acts, values, announce, counted, t.Read, t.Else)
	if err != nil {
		return kv.Result{}, err
	}
	r := kv.Result{OK: a.ok, Index: uint64(a.index), Incarnation: a.incarnation}
	reads := t.Read
	if r.OK {
		for _, w := range t.Then {
			i, _ := slices.BinarySearch(keys, w.Key)
			r.Versions = append(r.Versions, uint64(a.versions[i]))
		}
	} else {
		reads = slices.Concat(t.Read, t.Else)
	}
	for i, k := range reads {
		r.Items = append(r.Items, kv.Item{Key: k, Value: a.values[i], Version: uint64(a.readVersions[i]), Created: uint64(a.created[i])})
	}
	return r, nil
}

// answer is the answer of the procedure.
type answer struct {
	ok                              bool
	index, began                    int64
	incarnation                     string
	versions, readVersions, created []int64
	values                          [][]byte
}

// procedure calls the procedure commit.
func (d *Driver) procedure(ctx context.Context, what string, reads bool, args ...any) (a answer, err error) {
	err = d.call(ctx, what, reads, func(ctx context.Context) error {
		return d.pool.QueryRow(ctx, d.commit, append([]any{pgx.QueryExecModeExec}, args...)...).
			Scan(&a.ok, &a.versions, &a.index, &a.incarnation, &a.began, &a.values, &a.readVersions, &a.created)
	})
	return a, err
}

// List implements kv.Driver.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) ([]kv.Item, error) {
	var items []kv.Item
	err := d.call(ctx, "list "+prefix, true, func(ctx context.Context) error {
		rows, err := d.pool.Query(ctx, d.list, pgx.QueryExecModeExec, prefix, prefix+"\x7f", after, limit)
		if err != nil {
			return err
		}
		items, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (i kv.Item, err error) {
			err = row.Scan(&i.Key, &i.Value, &i.Version, &i.Created)
			return i, err
		})
		return err
	})
	return items, err
}

// Incarnation implements kv.Driver. Its id changes with every start of the server and every
// promotion. The server has everything that was committed up to Began.
func (d *Driver) Incarnation(ctx context.Context) (kv.Incarnation, error) {
	a, err := d.procedure(ctx, "read the incarnation", true, nil, nil, nil, nil, nil, false, nil, nil)
	return kv.Incarnation{ID: a.incarnation, Began: uint64(a.began), Index: uint64(a.index)}, err
}

// call gives a call a deadline, retries it if that is safe, and classifies errors.
func (d *Driver) call(ctx context.Context, what string, reads bool, f func(context.Context) error) error {
	ctx, cancel := kv.Bounded(ctx)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		var pg *pgconn.PgError
		answered := errors.As(err, &pg) && pg.SeverityUnlocalized != "FATAL" && pg.SeverityUnlocalized != "PANIC"
		if d.own && !answered && !errors.Is(ctx.Err(), context.Canceled) {
			d.pool.Reset() // the other connections are probably broken too
		}
		again := answered && (pg.Code == "40001" || pg.Code == "40P01") ||
			!answered && (reads || pgconn.SafeToRetry(err)) && !errors.As(err, new(*pgconn.ConnectError))
		if !again || ctx.Err() != nil {
			return fmt.Errorf("postgres: %s: %w", what, d.classify(err))
		}
		kv.Pause(ctx, 10*time.Millisecond)
	}
}

// classify marks permanent errors, and adds the remedy.
func (d *Driver) classify(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case "28P01", "28000":
		return fmt.Errorf("%w: %w", store.ErrUnauthenticated, err)
	case "42501":
		return fmt.Errorf("%w: %w; the comment in schema.sql lists the rights that are needed", store.ErrDenied, err)
	case "3D000":
		return fmt.Errorf("%w: %w; create the database first", store.ErrInvalid, err)
	case "25006", "55000":
		return fmt.Errorf("the server is a read-only standby: %w", err)
	case "42883", "42P01", "3F000":
		return fmt.Errorf("schema %s is incomplete or was dropped: %w", quote(d.cfg.Schema), err)
	}
	return err
}

func quote(schema string) string { return `"` + strings.ReplaceAll(schema, `"`, `""`) + `"` }
