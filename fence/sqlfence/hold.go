package sqlfence

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tenurehq/tenure/fence"
)

// Held is the marks of some resources, locked until the transaction ends: until then
// nobody else is admitted to them or raises them. It serves a writer that commits the
// writes of many callers in one transaction and cannot ask the database about each stamp:
//
//	held, err := sqlfence.Postgres.Hold(ctx, tx, "invoices", "orders")
//	…
//	for each write: // judged by the rule of package fence, one after another
//		next, err := held.Mark(resource).Admit(stamp)
//		if err != nil { … } // refuse this write; the others are not affected
//		held.Set(resource, next, nil)
//	…
//	err = held.Store(ctx) // two statements in all, however many writes there are
//
// Limitations: a Guard that raises the mark of a held resource does not queue for it but
// tries again until deadlock_timeout has passed (PostgreSQL). If a resource is held most
// of the time, let all its writers hold it. Hold takes two advisory locks for each
// resource (PostgreSQL; see max_locks_per_transaction). On SQLite it needs version 3.41. On
// MySQL at most 8,000 marks can be stored at once.
type Held struct {
	bound Bound
	marks map[string]*heldMark
}

type heldMark struct {
	stored, mark fence.Mark
	answer       []byte
	changed      bool
}

// Hold locks the marks of the resources and reads them. Resources are locked in one
// order, so that two calls do not wait for each other. See Held.
func (d Dialect) Hold(ctx context.Context, tx Tx, resources ...string) (*Held, error) {
	return d.On(standard{tx}).Hold(ctx, resources...)
}

// Hold is Dialect.Hold.
func (b Bound) Hold(ctx context.Context, resources ...string) (*Held, error) {
	h := &Held{bound: b, marks: make(map[string]*heldMark, len(resources))}
	for _, r := range resources {
		if r == "" {
			return nil, wrap(r, &fence.InvalidError{Field: "resource", Rule: "must not be empty"})
		}
		if err := errors.Join(text("resource", r), b.fits(mysqlName, "resource", r)); err != nil {
			return nil, wrap(r, err)
		}
		h.marks[r] = &heldMark{}
	}
	if err := b.inTx(); err != nil || len(h.marks) == 0 {
		return h, err
	}
	sorted := slices.Sorted(maps.Keys(h.marks))
	names, err := json.Marshal(sorted)
	if err != nil {
		return nil, fmt.Errorf("sqlfence: hold: %w", err)
	}
	var query, found string
	args := []any{string(names)}
	switch b.dialect {
	case Postgres:
		query = "SELECT tenure_hold($1)"
	case SQLite:
		if err := b.lockDatabase(ctx); err != nil {
			return nil, fmt.Errorf("sqlfence: hold: %w", err)
		}
		query = `SELECT json_group_array(json_object('resource', resource, 'deployment', deployment, 'group', grp, 'token', token,
			'seq', seq, 'digest', digest, 'session', session, 'answer', hex(answer)))
			FROM tenure_mark WHERE resource IN (SELECT value FROM json_each(?1))`
	case MySQL:
		if _, err := b.lockMySQL(ctx, sorted...); err != nil {
			return nil, fmt.Errorf("sqlfence: hold: %w", err)
		}
		query, args = heldMySQL(sorted)
	default:
		return nil, fmt.Errorf("sqlfence: no dialect: %s", b.dialect)
	}
	if err := b.run.QueryRow(ctx, query, args...).Scan(&found); err != nil {
		return nil, fmt.Errorf("sqlfence: hold: %w", outdated(err))
	}
	var rows []struct {
		Resource string `json:"resource"`
		fence.Mark
		Answer string `json:"answer"`
	}
	if err := json.Unmarshal([]byte(found), &rows); err != nil {
		return nil, fmt.Errorf("sqlfence: hold: the database answers %.60q: %w", found, err)
	}
	for _, r := range rows {
		answer, err := hex.DecodeString(r.Answer)
		m := h.marks[r.Resource]
		if err != nil || m == nil {
			return nil, fmt.Errorf("sqlfence: hold: the database answers %q with the answer %.60q", r.Resource, r.Answer)
		}
		m.stored, m.mark = r.Mark, r.Mark
		if len(answer) > 0 {
			m.answer = answer
		}
	}
	return h, nil
}

// Mark returns the mark of a held resource, as it was set last. It panics if the resource is
// not held, because a zero Mark would admit every stamp.
func (h *Held) Mark(resource string) fence.Mark { return h.of(resource).mark }

// Answer returns the answer to the last strict write, for its retry.
func (h *Held) Answer(resource string) []byte { return h.of(resource).answer }

// Set keeps the mark that the rule returned for an admitted stamp, with the answer for
// retries of a strict write (nil for other writes). Store writes it.
func (h *Held) Set(resource string, next fence.Mark, answer []byte) {
	m := h.of(resource)
	switch {
	case answer != nil:
		m.answer, m.changed = answer, true
	case next.Token != m.mark.Token || next.Seq != m.mark.Seq:
		m.answer = nil // it belongs to another write
	}
	m.changed = m.changed || next != m.mark
	m.mark = next
}

func (h *Held) of(resource string) *heldMark {
	m := h.marks[resource]
	if m == nil {
		panic(fmt.Sprintf("sqlfence: resource %q is not held", resource))
	}
	return m
}

// Store writes the marks that were set. On an error nothing of the transaction may be
// committed.
func (h *Held) Store(ctx context.Context) error {
	var rows [][]any
	for resource, m := range h.marks {
		if !m.changed {
			continue
		}
		if err := errors.Join(storable(resource, m.stored, m.mark), h.bound.fits(mysqlName, "deployment or group", m.mark.Deployment, m.mark.Group), h.bound.fits(mysqlDigest, "digest", m.mark.Digest)); err != nil {
			return wrap(resource, err)
		}
		var answer any
		if m.answer != nil {
			answer = hex.EncodeToString(m.answer)
		}
		rows = append(rows, []any{resource, m.mark.Deployment, m.mark.Group, int64(m.mark.Token), int64(m.mark.Seq), m.mark.Digest, m.mark.Session, answer})
	}
	if len(rows) == 0 {
		return nil
	}
	if h.bound.dialect == MySQL {
		query, args := storeMarksMySQL(rows)
		if _, err := h.bound.run.Exec(ctx, query, args...); err != nil {
			return fmt.Errorf("sqlfence: store: %w", err)
		}
		h.stored()
		return nil
	}
	data, err := json.Marshal(rows)
	if err != nil {
		return fmt.Errorf("sqlfence: store: %w", err)
	}
	n, err := h.bound.run.Exec(ctx, h.bound.storeMarks(), string(data))
	if err == nil && n != int64(len(rows)) {
		err = fmt.Errorf("%d of %d marks were stored", n, len(rows))
	}
	if err != nil {
		return fmt.Errorf("sqlfence: store: %w", err)
	}
	h.stored()
	return nil
}

func (h *Held) stored() {
	for _, m := range h.marks {
		m.stored, m.changed = m.mark, false
	}
}

// storable refuses a mark that the rule cannot have returned.
func storable(resource string, stored, next fence.Mark) error {
	switch {
	case next.Token < stored.Token:
		return fmt.Errorf("the mark is at %d: it never goes down", stored.Token)
	case stored.Token != 0 && (next.Deployment != stored.Deployment || next.Group != stored.Group):
		return fmt.Errorf("the mark belongs to %s/%s: it cannot move to another group", stored.Deployment, stored.Group)
	}
	s := fence.Stamp{Deployment: next.Deployment, Group: next.Group, Token: next.Token, Seq: next.Seq, Session: next.Session}
	return errors.Join(check(resource, s), text("digest", next.Digest))
}

// storeMarks upserts an array of marks, each an array of columns.
func (b Bound) storeMarks() string {
	rows := `SELECT e->>0, e->>1, e->>2, (e->>3)::bigint, (e->>4)::bigint, e->>5, e->>6, decode(e->>7, 'hex') FROM jsonb_array_elements($1::jsonb) AS marks(e)`
	if b.dialect == SQLite {
		rows = `SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, unhex(value->>7) FROM json_each(?1) WHERE true`
	}
	return `INSERT INTO tenure_mark (resource, deployment, grp, token, seq, digest, session, answer) ` + rows + `
		ON CONFLICT (resource) DO UPDATE SET token = excluded.token, seq = excluded.seq, digest = excluded.digest,
			session = excluded.session, answer = excluded.answer`
}
