package check

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"time"

	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/ledgerdb"
	"github.com/tenurehq/tenure/lab/verdict"
)

// ledgerTimeout bounds the queries to a ledger's database.
const ledgerTimeout = 5 * time.Minute

var ledgerCounts = []string{"allocations", "ticks", "numbers", "calls compared", "calls not compared"}

// Ledger checks a ledger's database with SQL: the numbers of a sequence rise (G6), and so
// do the tokens of its allocations and ticks (G2). db is a SQLite file or a postgres URL; it
// is only read.
func Ledger(ctx context.Context, db string) verdict.Verdict {
	v := verdict.New("G6", "ledger", ledgerCounts...)
	ledgerCheck(ctx, db)(v, facts.New())
	return v.Decide()
}

// ledgerCheck also compares the database with the history. Every answer to a client must
// lie in one allocation of its token. The effects in the history must be those of the
// database in the same order.
func ledgerCheck(ctx context.Context, path string) func(*verdict.Verdict, *facts.Facts) watcher {
	return func(v *verdict.Verdict, f *facts.Facts) watcher {
		var (
			kept     facts.Allocations // the ledger may have removed the oldest
			effects  [][8]byte         // digests of the effects
			compared int
			differs  bool
			early    bool
		)
		keep := func(e history.Effect) error {
			digest, err := digestOf(e)
			effects = append(effects, digest)
			kept.Add(f, e)
			return err
		}
		if err := readLedger(ctx, v, path, f.Run.Group, keep); err != nil {
			v.Doubt(nil, "the ledger's database cannot be read: %v", err)
			return watcher{}
		}
		if f.Run.Group == "" {
			return watcher{}
		}
		return watcher{
			effect: func(e history.Effect) {
				if differs {
					return
				}
				compared++
				if digest, err := digestOf(e); err != nil || compared > len(effects) || digest != effects[compared-1] {
					differs = true
					v.Violated(at{e.Line}, "the ledger's database has another effect at this position (%d of %d)", compared, len(effects))
				}
			},
			answer: func(c history.Call, _ facts.Peak) {
				if c.Last < kept.Least {
					if v.Add("calls not compared"); !early {
						early = true
						v.Doubt(at{c.Line}, "a client has %d to %d, and the ledger has deleted what is below %d; start it with a larger --history", c.First, c.Last, kept.Least)
					}
					return
				}
				v.Add("calls compared")
				if kept.Holding(c.Token, c.First, c.Last) == nil {
					v.Violated(at{c.Line}, "a client has %d to %d under token %d, and the ledger has no such allocation", c.First, c.Last, c.Token)
				}
			},
			end: func() {
				if f.Whole() && !differs && compared < len(effects) {
					v.Violated(nil, "the ledger's database has %d effects, and the history has only the first %d", len(effects), compared)
				}
			},
		}
	}
}

// digestOf is enough of a digest to compare two effects.
func digestOf(e history.Effect) ([8]byte, error) {
	line, err := history.Encode(e)
	sum := sha256.Sum256(line)
	return [8]byte(sum[:8]), err
}

// readLedger checks the tables, and calls keep with the effects of a group if one is given.
func readLedger(ctx context.Context, v *verdict.Verdict, path, group string, keep func(history.Effect) error) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	db, err := ledgerdb.Open(path, false)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	// One transaction, so that all queries see the same state of a running ledger.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := tx.QueryRowContext(ctx, "SELECT (SELECT COUNT(*) FROM allocation), (SELECT CAST(COALESCE(SUM(last_seq - first_seq + 1), 0) AS BIGINT) FROM allocation), (SELECT COUNT(*) FROM tick)").
		Scan(v.Counter("allocations"), v.Counter("numbers"), v.Counter("ticks")); err != nil {
		return err
	}
	if err := ledgerdb.Disorder(ctx, tx, func(table string, s ledgerdb.Step) {
		file := ledgerdb.Name(path) + " " + table
		places := at{{File: file, Line: s.N}, {File: file, Line: s.WasN}}
		if s.First <= s.WasLast {
			v.Violated(places, "%s: %d was taken by token %d after %d", s.Of, s.First, s.Token, s.WasLast)
		} else {
			v.Violated(places, "%s: token %d wrote after token %d", s.Of, s.Token, s.WasToken)
		}
	}); err != nil {
		return err
	}
	deleted, err := ledgerdb.Deleted(ctx, tx)
	if err != nil {
		return err
	}
	for _, what := range deleted {
		if what != ledgerdb.RefusedWrites { // they are not compared here
			v.Doubt(nil, "the ledger has deleted %s; start it with a larger --history", what)
		}
	}
	if group == "" {
		return nil
	}
	return ledgerdb.Effects(ctx, tx, group, keep)
}
