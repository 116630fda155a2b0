package pgxfence_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/pgxfence"
	"github.com/tenurehq/tenure/fence/sqlfence"
)

func at(token fence.Token) fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "billing", Token: token}
}

// All tests that need PostgreSQL share one server, because starting one takes longer than
// most of the tests.
func TestPostgres(t *testing.T) {
	l := &lazy{t: t}
	t.Run("alone", func(t *testing.T) { postgresAlone(t, l) })
	t.Run("once", func(t *testing.T) {
		onceOn(t, func(t *testing.T) adapter { return dial(t, sqlfence.Postgres, l.server().URL()) })
	})
	t.Run("held", func(t *testing.T) { postgresHeld(t, l) })
	t.Run("contract", func(t *testing.T) { postgresContract(t, l) })
}

// Promises that only PostgreSQL keeps.
func postgresAlone(t *testing.T, l *lazy) {
	pool, err := pgxpool.New(t.Context(), l.server().URL()+"&pool_max_conns=20")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, tt := range []struct {
		name string
		test func(*testing.T, *pgxpool.Pool)
	}{
		{"rule", ruleIsTheSame},
		{"share", writersShare},
		{"rise", manyRise},
		{"crossed", crossed},
		{"overtaken", overtaken},
		{"gate", gateStaysFree},
		{"refusal", refusalLeavesTx},
		{"one select", anyLanguage},
		{"queue", queued},
		{"inside", inside},
		{"inside waits", insideWaits},
		{"snapshots", oldSnapshotsFail},
		{"by hand", byHand},
		{"names", names},
		{"migrate", migrateTogether},
		{"schemas", secondSchema},
		{"upgrade", upgrade},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, pool) })
	}
}

func begin(t *testing.T, pool *pgxpool.Pool, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A writer that read the mark, and was overtaken by a newer leader before it had the lock,
// reads it again and is refused. A rule that waits makes the time in between long.
func overtaken(t *testing.T, pool *pgxpool.Pool) {
	ctx := t.Context()
	const slow, key = 5_000, 4242
	_, err := pool.Exec(ctx, "CREATE SCHEMA slow")
	must(t, err)
	defer func() { _, _ = pool.Exec(context.WithoutCancel(ctx), "DROP SCHEMA slow CASCADE") }()
	config := pool.Config().Copy()
	config.ConnConfig.RuntimeParams["search_path"], config.ConnConfig.RuntimeParams["tenure.apart"] = "slow", "on"
	apart, err := pgxpool.NewWithConfig(ctx, config)
	must(t, err)
	defer apart.Close()
	must(t, pgxfence.Migrate(ctx, apart))
	for _, statement := range []string{
		"ALTER FUNCTION tenure_rule RENAME TO tenure_rule_at_once",
		fmt.Sprintf(`CREATE FUNCTION tenure_rule(m tenure_mark, a_deployment text, a_group text, a_token bigint, a_session text) RETURNS text LANGUAGE plpgsql AS $$
			DECLARE verdict text := tenure_rule_at_once(m, a_deployment, a_group, a_token, a_session);
			BEGIN
				IF a_token = %d THEN
					PERFORM pg_advisory_xact_lock_shared(%d);
				END IF;
				RETURN verdict;
			END $$`, slow, key),
	} {
		_, err := apart.Exec(ctx, statement)
		must(t, err)
	}
	guard := func(token fence.Token) error {
		return pgx.BeginFunc(ctx, apart, func(tx pgx.Tx) error { return pgxfence.Guard(ctx, tx, "overtaken", at(token)) })
	}
	must(t, guard(slow-1))
	hold := begin(t, apart, pgx.ReadCommitted)
	_, err = hold.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", key)
	must(t, err)
	late := make(chan error, 1)
	go func() { late <- guard(slow) }()
	for waiting, deadline := 0, time.Now().Add(30*time.Second); waiting == 0; time.Sleep(5 * time.Millisecond) {
		must(t, pool.QueryRow(ctx, "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted", key).Scan(&waiting))
		if time.Now().After(deadline) {
			t.Fatal("nobody waits")
		}
	}
	must(t, guard(slow+1))
	must(t, hold.Rollback(ctx))
	var stale *fence.StaleError
	if err := <-late; !errors.As(err, &stale) {
		t.Errorf("a writer that was overtaken between its look and its lock: %v", err)
	}
}

// The rule in SQL gives the same results as the rule in Go.
func ruleIsTheSame(t *testing.T, pool *pgxpool.Pool) {
	type question struct {
		Mark  fence.Mark
		Stamp fence.Stamp
	}
	tokens := []fence.Token{
		1, 2, 7, 8, 7 + fence.MaxJump, 8 + fence.MaxJump, fence.NewToken(0, fence.MaxCounter), fence.NewToken(1, 1), fence.NewToken(1, 7), fence.NewToken(1, 7+fence.MaxJump),
		fence.NewToken(1, 8+fence.MaxJump), fence.NewToken(2, 1), fence.NewToken(2, 8), fence.MaxToken - 1, fence.MaxToken,
	}
	for range 20 {
		tokens = append(tokens, fence.Token(rand.Uint64N(uint64(fence.MaxToken)))+1)
	}
	var all []question
	for _, mark := range append(tokens, 0) {
		for _, token := range append(tokens, 0, fence.MaxToken+1) {
			m := fence.Mark{Deployment: "prod", Group: "billing", Token: mark}
			if mark == 0 {
				m = fence.Mark{}
			}
			all = append(all, question{m, at(token)})
		}
	}
	for _, s := range []fence.Stamp{{Deployment: "x", Group: "billing", Token: 7}, {Deployment: "prod", Group: "x", Token: 9}, {Deployment: "", Group: "billing", Token: 7}, {Deployment: "prod", Token: 7}} {
		all = append(all, question{fence.Mark{Deployment: "prod", Group: "billing", Token: 7}, s}, question{fence.Mark{}, s})
	}
	for _, mark := range []string{"", "a", "b"} {
		for _, stamp := range []string{"", "a"} {
			for _, token := range []fence.Token{6, 7, 8} {
				all = append(all, question{fence.Mark{Deployment: "prod", Group: "billing", Token: 7, Session: mark}, fence.Stamp{Deployment: "prod", Group: "billing", Token: token, Session: stamp}})
			}
		}
	}
	text, err := json.Marshal(all)
	must(t, err)
	rows, err := pool.Query(t.Context(), `SELECT tenure_rule(ROW('r', q->'Mark'->>'deployment', q->'Mark'->>'group', nullif((q->'Mark'->>'token')::bigint, 0), 0, '', NULL, coalesce(q->'Mark'->>'session', ''))::tenure_mark,
		q->'Stamp'->>'deployment', q->'Stamp'->>'group', (q->'Stamp'->>'token')::bigint, coalesce(q->'Stamp'->>'session', '')) FROM json_array_elements($1::json) WITH ORDINALITY e(q, n) ORDER BY n`, string(text))
	must(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	if len(got) != len(all) {
		t.Fatalf("%d answers to %d questions", len(got), len(all))
	}
	for i, q := range all {
		_, err := q.Mark.Admit(q.Stamp)
		if want := word(err); got[i] != want {
			t.Errorf("mark %+v, %+v: SQL says %s, Go says %s (%v)", q.Mark, q.Stamp, got[i], want, err)
		}
	}
}

func word(err error) string {
	var stale *fence.StaleError
	var slip *fence.SlipError
	var foreign *fence.ForeignError
	var invalid *fence.InvalidError
	var clone *fence.CloneError
	switch {
	case errors.As(err, &clone):
		return "clone"
	case err == nil:
		return "ok"
	case errors.As(err, &stale):
		return "stale"
	case errors.As(err, &slip):
		return "slip"
	case errors.As(err, &foreign):
		return "foreign"
	case errors.As(err, &invalid):
		return "invalid"
	}
	return err.Error()
}

// Writers with one token do not wait for each other. A new leader waits for them, and they do
// not wait for it.
func writersShare(t *testing.T, pool *pgxpool.Pool) {
	r := fresh()
	must(t, pgxfence.NewSink(pool, r).Seal(t.Context(), at(4)))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	a, b := begin(t, pool, ""), begin(t, pool, "")
	must(t, pgxfence.Guard(ctx, a, r, at(4)))
	must(t, pgxfence.Guard(ctx, b, r, at(4)))
	sealed := make(chan error, 1)
	go func() { sealed <- pgxfence.NewSink(pool, r).Seal(ctx, at(5)) }()
	must(t, a.Commit(ctx))
	select {
	case err := <-sealed:
		t.Fatalf("sealed beside a transaction that was admitted: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	must(t, b.Commit(ctx))
	must(t, <-sealed)
}

// Many concurrent transactions of a new leader are all admitted without a deadlock, and of
// several leaders the highest token remains.
func manyRise(t *testing.T, pool *pgxpool.Pool) {
	r := fresh()
	must(t, pgxfence.NewSink(pool, r).Seal(t.Context(), at(1)))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for round := range fence.Token(5) {
		top := 10*round + 13
		var all sync.WaitGroup
		for i := range 16 {
			token := top - fence.Token(i%3)
			all.Go(func() {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return pgxfence.Guard(ctx, tx, r, at(token)) })
				if err != nil && (token == top || word(err) != "stale") {
					t.Errorf("token %d beside %d: %v", token, top, err)
				}
			})
		}
		all.Wait()
		if m, err := pgxfence.ReadMark(ctx, pool, r); err != nil || m.Token != top {
			t.Errorf("the mark is %+v, %v; want %d", m, err, top)
		}
	}
}

// If the transaction that raises the mark waits for a row of one that waits for the mark, one
// of them fails as a deadlock.
func crossed(t *testing.T, pool *pgxpool.Pool) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r := fresh()
	must(t, pgxfence.NewSink(pool, r).Seal(ctx, at(4)))
	_, err := pool.Exec(ctx, "INSERT INTO effects (resource, payload) VALUES ($1, 'x')", r)
	must(t, err)
	update := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE effects SET payload = 'y' WHERE resource = $1", r)
		return err
	}
	raises, writes := begin(t, pool, ""), begin(t, pool, "")
	must(t, pgxfence.Guard(ctx, raises, r, at(5)))
	must(t, update(writes))
	done := make(chan error, 1)
	go func() { done <- update(raises) }()
	err = pgxfence.Guard(ctx, writes, r, at(5))
	var raised *pgconn.PgError
	if !errors.As(err, &raised) || raised.Code != "40P01" || !sqlfence.Repeatable(err) || !strings.Contains(raised.Message, r) {
		t.Errorf("the one that waits for the mark: %v", err)
	}
	must(t, writes.Rollback(ctx))
	must(t, <-done)
	must(t, raises.Commit(ctx))
	must(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return errors.Join(update(tx), pgxfence.Guard(ctx, tx, r, at(5)))
	}))
}

// An invalid stamp takes no lock, so its transaction blocks nobody.
func gateStaysFree(t *testing.T, pool *pgxpool.Pool) {
	r := fresh()
	tx := begin(t, pool, "")
	for _, ask := range []string{
		"SELECT tenure_admit($1, 'prod', 'billing', 0)",
		"SELECT tenure_admit($1, '', 'billing', 4)",
		"SELECT said FROM tenure_admit_strict($1, 'prod', 'billing', 0, 1, 'd')",
		"SELECT said FROM tenure_admit_strict($1, 'prod', 'billing', 4, 0, 'd')",
		"SELECT tenure_advance($1, 'prod', 'billing', 0)",
	} {
		var said string
		must(t, tx.QueryRow(t.Context(), ask, r).Scan(&said))
		if !strings.Contains(said, "invalid") {
			t.Errorf("%s: %s", ask, said)
		}
	}
	var locks int
	must(t, tx.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'").Scan(&locks))
	if locks != 0 {
		t.Errorf("%d locks are held by what was refused as invalid", locks)
	}
}

// A refusal is not a database error: the transaction can continue, for instance to record the
// refusal.
func refusalLeavesTx(t *testing.T, pool *pgxpool.Pool) {
	r := fresh()
	must(t, pgxfence.NewSink(pool, r).Seal(t.Context(), at(5)))
	tx := begin(t, pool, "")
	err := pgxfence.Guard(t.Context(), tx, r, at(4))
	var stale *fence.StaleError
	if !errors.As(err, &stale) || stale.Mark.Token != 5 || !strings.Contains(err.Error(), r) {
		t.Fatalf("guard of a lower token: %v", err)
	}
	_, err = tx.Exec(t.Context(), "INSERT INTO effects (resource, payload) VALUES ($1, 'refused')", r)
	must(t, err)
	must(t, tx.Commit(t.Context()))
}

// One SELECT fences a write from any language: the error has a code and names both tokens.
func anyLanguage(t *testing.T, pool *pgxpool.Pool) {
	r := fresh()
	for _, tt := range []struct {
		arguments string
		code      string // "": accepted
		says      []string
	}{
		{`'prod', 'billing', 42`, "", nil},
		{`'prod', 'billing', 42`, "", nil},
		{`'prod', 'billing', 41`, "TN001", []string{"41", "42", r}},
		{`'prod', 'billing', 1000043`, "TN002", []string{"1000043", "42", r}},
		{`'prod', 'mail', 43`, "TN003", []string{"43", "42", "prod/billing", "prod/mail"}},
		{`'prod', 'billing', 0`, "TN004", nil},
		{`'prod', 'billing', -1`, "TN004", nil},
		{`'prod', 'billing', 9007199254740992`, "TN004", nil},
		{`'prod', 'billing', 9223372036854775807`, "TN004", nil},
		{`'', 'billing', 43`, "TN004", nil},
		{`'prod', NULL, 43`, "TN004", nil},
		{`'prod', 'billing', NULL`, "TN004", nil},
		{`'prod', 'billing', 1.5`, "42883", nil},
		{`'prod', 'billing', 9223372036854775808`, "42883", nil},
		{`'prod', 'billing', ''`, "22P02", nil},
		{`'prod', 'billing', '1e3'`, "22P02", nil},
		{`'prod', 'billing', '` + strings.Repeat("9", 10<<20) + `'`, "22003", nil},
		{`'prod', 'billing', 43`, "", nil},
	} {
		_, err := pool.Exec(t.Context(), fmt.Sprintf("SELECT tenure_guard('%s', %s)", r, tt.arguments))
		var raised *pgconn.PgError
		if tt.code == "" {
			if err != nil {
				t.Errorf("%.60s: %v", tt.arguments, err)
			}
			continue
		}
		if !errors.As(err, &raised) || raised.Code != tt.code {
			t.Errorf("%.60s: %.200v, want %s", tt.arguments, err, tt.code)
			continue
		}
		for _, part := range tt.says {
			if !strings.Contains(raised.Message, part) {
				t.Errorf("%s: %q does not say %q", tt.arguments, raised.Message, part)
			}
		}
	}
	_, err := pool.Exec(t.Context(), "SELECT tenure_guard(NULL, 'prod', 'billing', 43)")
	if raised := new(pgconn.PgError); !errors.As(err, &raised) || raised.Code != "TN004" {
		t.Errorf("no resource: %v", err)
	}
}

// A guard in a batch prevents the statements after it, and its refusal is the error of the batch.
func queued(t *testing.T, pool *pgxpool.Pool) {
	r := fresh()
	write := func(s fence.Stamp, payload string) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			batch := &pgx.Batch{}
			if err := pgxfence.Queue(batch, r, s); err != nil {
				return err
			}
			batch.Queue("INSERT INTO effects (resource, payload) VALUES ($1, $2)", r, payload)
			return tx.SendBatch(t.Context(), batch).Close()
		})
	}
	must(t, write(at(5), "a"))
	var stale *fence.StaleError
	if err := write(at(4), "b"); !errors.As(err, &stale) || stale.Stamp.Token != 4 || stale.Mark.Token != 5 {
		t.Errorf("a lower token: %v", err)
	}
	for _, s := range []fence.Stamp{at(fence.MaxToken), at(0), {Deployment: "staging", Group: "billing", Token: 5}} {
		if err := write(s, "c"); !errors.Is(err, fence.ErrRefused) {
			t.Errorf("%s: %v", s, err)
		}
	}
	must(t, write(at(6), "d"))

	// A caller that reads the results one by one finds two of the guard.
	ask := func(s fence.Stamp) (n int, err error) {
		err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			batch := &pgx.Batch{}
			if err := pgxfence.Queue(batch, r, s); err != nil {
				return err
			}
			batch.Queue("SELECT 7")
			results := tx.SendBatch(t.Context(), batch)
			defer func() { err = errors.Join(err, results.Close()) }()
			for range 2 {
				if _, err := results.Exec(); err != nil {
					return pgxfence.Refusal(r, s, err)
				}
			}
			return results.QueryRow().Scan(&n)
		})
		return n, err
	}
	if n, err := ask(at(6)); err != nil || n != 7 {
		t.Errorf("results one by one: %d, %v", n, err)
	}
	if _, err := ask(at(5)); !errors.As(err, &stale) || stale.Mark.Token != 6 {
		t.Errorf("a lower token, results one by one: %v", err)
	}
	if err := pgxfence.Refusal(r, at(5), context.Canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("what is no refusal: %v", err)
	}
	got, err := pgxResource(pool, r).Effects(t.Context())
	if err != nil || fmt.Sprint(got) != "[a d]" {
		t.Errorf("effects %q, %v", got, err)
	}
}

// A guard inside a statement never raises the mark and reports what it refuses. It is evaluated
// once, however many rows the statement changes.
func inside(t *testing.T, pool *pgxpool.Pool) {
	r := fresh()
	write := func(s fence.Stamp) (rows int64, err error) {
		guard, args, err := pgxfence.Inside(r, s, r)
		if err != nil {
			return 0, err
		}
		tag, err := pool.Exec(t.Context(), "UPDATE effects SET payload = 'b' WHERE resource = $1 AND "+guard, args...)
		return tag.RowsAffected(), pgxfence.Refusal(r, s, err)
	}
	_, err := pool.Exec(t.Context(), "INSERT INTO effects (resource, payload) SELECT $1, 'a' FROM generate_series(1, 3)", r)
	must(t, err)
	sink := pgxfence.NewSink(pool, r)
	session := func(token fence.Token, name string) fence.Stamp {
		s := at(token)
		s.Session = name
		return s
	}
	for _, tt := range []struct {
		seal  fence.Stamp
		write fence.Stamp
		want  string
	}{
		{write: at(5), want: "unsealed"},
		{seal: at(5), write: at(5), want: "ok"},
		{write: at(6), want: "unsealed"},
		{write: at(4), want: "stale"},
		{write: at(fence.MaxToken), want: "slip"},
		{write: at(0), want: "invalid"},
		{write: fence.Stamp{Deployment: "staging", Group: "billing", Token: 5}, want: "foreign"},
		{write: session(5, "a"), want: "ok"}, // the mark takes the session
		{write: session(5, "b"), want: "clone"},
		{write: at(5), want: "ok"},
	} {
		if tt.seal.Token > 0 {
			must(t, sink.Seal(t.Context(), tt.seal))
		}
		rows, err := write(tt.write)
		if tt.want == "unsealed" && errors.Is(err, sqlfence.ErrUnsealed) {
			continue
		}
		if got := word(err); got != tt.want || rows != map[string]int64{"ok": 3}[tt.want] {
			t.Errorf("%s: %d rows, %v; want %q", tt.write, rows, err, tt.want)
		}
	}
	if m, err := sink.Mark(t.Context()); err != nil || m.Token != 5 || m.Session != "a" {
		t.Errorf("the mark is %+v, %v", m, err)
	}
	var plan string
	must(t, pool.QueryRow(t.Context(), "EXPLAIN (FORMAT json) UPDATE effects SET payload = 'c' WHERE resource = 'x' AND (SELECT tenure_inside('x', 'd', 'g', 5, ''))").Scan(&plan))
	if !strings.Contains(plan, "InitPlan") || strings.Contains(plan, "SubPlan") {
		t.Errorf("the guard is not evaluated once: %s", plan)
	}
	if _, _, err := sqlfence.SQLite.Inside(r, at(5)); err == nil {
		t.Error("SQLite has no guard inside")
	}
}

// A statement that was sent before the mark rose, and waits for the lock of its token, is refused
// when it gets it. A copy of the guard that reads with the statement's snapshot is not.
func insideWaits(t *testing.T, pool *pgxpool.Pool) {
	_, err := pool.Exec(t.Context(), `DO $do$ BEGIN EXECUTE format('CREATE FUNCTION stable_inside(a_resource text, a_deployment text, a_group text, a_token bigint, a_session text)
		RETURNS boolean LANGUAGE plpgsql STABLE AS %L', (SELECT prosrc FROM pg_proc WHERE proname = 'tenure_inside')); END $do$`)
	must(t, err)
	for function, want := range map[string]string{"tenure_inside": "stale", "stable_inside": "ok"} {
		r := fresh()
		must(t, pgxfence.NewSink(pool, r).Seal(t.Context(), at(5)))
		tx := begin(t, pool, pgx.ReadCommitted)
		must(t, pgxfence.Guard(t.Context(), tx, r, at(6)))
		guard, args, err := pgxfence.Inside(r, at(5), r)
		must(t, err)
		wrote := make(chan error, 1)
		go func() {
			_, err := pool.Exec(t.Context(), "INSERT INTO effects (resource, payload) SELECT $1, 'a' WHERE "+strings.ReplaceAll(guard, "tenure_inside", function), args...)
			wrote <- pgxfence.Refusal(r, at(5), err)
		}()
		for deadline := time.Now().Add(30 * time.Second); ; {
			var waits bool
			must(t, pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'advisory')").Scan(&waits))
			if waits {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the statement does not wait")
			}
		}
		must(t, tx.Commit(t.Context()))
		if got := word(<-wrote); got != want {
			t.Errorf("%s: %q, want %q", function, got, want)
		}
	}
}

// A transaction whose snapshot is older than the mark fails with a serialization error,
// whatever it has read. It is never admitted.
func oldSnapshotsFail(t *testing.T, pool *pgxpool.Pool) {
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, tt := range []struct {
			name              string
			seen, then, token fence.Token // the mark in the snapshot, the mark now, the writer's
		}{
			{"overtaken", 4, 5, 4},
			{"raised to the same token", 4, 5, 5},
			{"raised above a new token", 4, 6, 5},
			{"raised below a new token", 4, 5, 6},
			{"first contact of a newer", 0, 5, 4},
			{"first contact of an older", 0, 4, 5},
			{"first contact of the same", 0, 5, 5},
		} {
			r := fresh()
			sink := pgxfence.NewSink(pool, r)
			if tt.seen != 0 {
				must(t, sink.Seal(t.Context(), at(tt.seen)))
			}
			tx := begin(t, pool, level)
			_, err := tx.Exec(t.Context(), "SELECT count(*) FROM effects") // takes the snapshot
			must(t, err)
			must(t, sink.Seal(t.Context(), at(tt.then)))
			err = pgxfence.Guard(t.Context(), tx, r, at(tt.token))
			var raised *pgconn.PgError
			if !errors.As(err, &raised) || raised.Code != "40001" {
				t.Errorf("%s, %s: answered %v, want a serialization failure", level, tt.name, err)
			}
			must(t, tx.Rollback(t.Context()))

			// With a current snapshot it is admitted.
			err = pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
				return pgxfence.Guard(t.Context(), tx, r, at(7))
			})
			if err != nil {
				t.Errorf("%s, %s: next leader: %v", level, tt.name, err)
			}
		}
	}
}

// A manual change of the mark waits for the transactions that it admitted, and cannot lower
// it.
func byHand(t *testing.T, pool *pgxpool.Pool) {
	r := fresh()
	must(t, pgxfence.NewSink(pool, r).Seal(t.Context(), at(5)))
	if _, err := pool.Exec(t.Context(), "UPDATE tenure_mark SET token = 4 WHERE resource = $1", r); err == nil {
		t.Error("the mark went down")
	}
	tx := begin(t, pool, "")
	must(t, pgxfence.Guard(t.Context(), tx, r, at(5)))
	done := make(chan error, 1)
	go func() {
		_, err := pool.Exec(t.Context(), "UPDATE tenure_mark SET token = 9 WHERE resource = $1", r)
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("raised beside a transaction that was admitted: %v", err)
	case <-time.After(50 * time.Millisecond):
		must(t, tx.Commit(t.Context()))
		must(t, <-done)
	}
	tx = begin(t, pool, "")
	must(t, pgxfence.Guard(t.Context(), tx, r, at(9)))
	go func() {
		_, err := pool.Exec(t.Context(), "DELETE FROM tenure_mark WHERE resource = $1", r)
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("deleted beside a transaction that was admitted: %v", err)
	case <-time.After(50 * time.Millisecond):
		must(t, tx.Commit(t.Context()))
		must(t, <-done)
	}
	must(t, pgxfence.NewSink(pool, r).Seal(t.Context(), at(1)))
}

// Values that the database cannot store are refused before a query is sent, so the
// transaction stays usable. A connection without a transaction is refused as well.
func names(t *testing.T, pool *pgxpool.Pool) {
	tx := begin(t, pool, "")
	for _, s := range []fence.Stamp{{Deployment: "a\x00", Group: "g", Token: 1}, {Deployment: "d", Group: "\xff", Token: 1}} {
		if err := pgxfence.Guard(t.Context(), tx, "r", s); word(err) != "invalid" {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, r := range []string{"", "\x00", "\xff"} {
		if err := pgxfence.Guard(t.Context(), tx, r, at(1)); word(err) != "invalid" {
			t.Errorf("resource %q: %v", r, err)
		}
	}
	odd := fence.Stamp{Deployment: `it's \'; --`, Group: "größe", Token: 1}
	must(t, pgxfence.Guard(t.Context(), tx, `r'\`+fresh(), odd))
	must(t, tx.Commit(t.Context()))

	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	if err := sqlfence.Postgres.Guard(t.Context(), db, fresh(), at(1)); err == nil {
		t.Error("a guard without a transaction was admitted")
	}
}

// Concurrent migrations, repeated while writers run, keep the marks.
func migrateTogether(t *testing.T, pool *pgxpool.Pool) {
	r := fresh()
	must(t, pgxfence.NewSink(pool, r).Seal(t.Context(), at(5)))
	busy := begin(t, pool, "")
	must(t, pgxfence.Guard(t.Context(), busy, r, at(5)))
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			migrate := func() error { return pgxfence.Migrate(t.Context(), pool) }
			if i%2 == 0 {
				migrate = func() error { return sqlfence.Postgres.Migrate(t.Context(), db) }
			}
			if err := migrate(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	must(t, busy.Commit(t.Context()))
	if m, err := pgxfence.ReadMark(t.Context(), pool, r); err != nil || m.Token != 5 {
		t.Errorf("the mark is %+v, %v", m, err)
	}
}

// Migrate does not create a second table of marks in another schema unless asked to: a
// resource would have two marks.
func secondSchema(t *testing.T, pool *pgxpool.Pool) {
	_, err := pool.Exec(t.Context(), "CREATE SCHEMA other")
	must(t, err)
	config := pool.Config().Copy()
	config.ConnConfig.RuntimeParams["search_path"] = "other, public"
	elsewhere, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	defer elsewhere.Close()
	db := stdlib.OpenDBFromPool(elsewhere)
	defer func() { _ = db.Close() }()
	for _, err := range []error{pgxfence.Migrate(t.Context(), elsewhere), sqlfence.Postgres.Migrate(t.Context(), db)} {
		if err == nil || !strings.Contains(err.Error(), "schema public") || !strings.Contains(err.Error(), "schema other") {
			t.Errorf("a second table of marks: %v", err)
		}
	}
	config.ConnConfig.RuntimeParams["tenure.apart"] = "on"
	apart, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	defer apart.Close()
	must(t, pgxfence.Migrate(t.Context(), apart))
	_, err = pool.Exec(t.Context(), "DROP SCHEMA other CASCADE")
	must(t, err)
}

// On a database of the version before sessions, the error says what to do; Migrate does it
// and keeps the marks.
func upgrade(t *testing.T, pool *pgxpool.Pool) {
	r := fresh()
	sink := pgxfence.NewSink(pool, r)
	must(t, sink.Seal(t.Context(), at(5)))
	_, err := pool.Exec(t.Context(), `ALTER TABLE tenure_mark DROP COLUMN session;
		DROP FUNCTION tenure_admit(text, text, text, bigint, text);
		DROP FUNCTION tenure_admit_strict(text, text, text, bigint, bigint, text, text);`)
	must(t, err)
	_, read := sink.Mark(t.Context())
	for _, err := range []error{sink.Seal(t.Context(), at(5)), read} {
		if err == nil || !strings.Contains(err.Error(), "run Migrate") {
			t.Errorf("a database of an older version: %v", err)
		}
	}
	must(t, pgxfence.Migrate(t.Context(), pool))
	if m, err := sink.Mark(t.Context()); err != nil || m.Token != 5 || m.Session != "" {
		t.Errorf("the mark is %+v, %v", m, err)
	}
	s := at(5)
	s.Session = "a"
	must(t, sink.Seal(t.Context(), s))
	s.Session = "b"
	if err := sink.Seal(t.Context(), s); word(err) != "clone" {
		t.Errorf("a seal by another session: %v", err)
	}
}
