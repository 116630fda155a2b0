package ledger

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
	"github.com/tenurehq/tenure/reference/ledger/state"
)

// list reads one item more than is asked for, to know whether there are more.
func list[T any](ctx context.Context, l *Ledger, limit int, query string, args []any, cursor func(T) string, dest func(*T) []any) (api.Page[T], error) {
	limit = pageSize(limit)
	page := api.Page[T]{Items: []T{}}
	if !database.Storable(args) {
		return page, nil
	}
	err := l.db.Each(ctx, query+" LIMIT "+strconv.Itoa(limit+1), args, func(rows *sql.Rows) error {
		var item T
		err := rows.Scan(dest(&item)...)
		page.Items = append(page.Items, item)
		return err
	})
	if len(page.Items) > limit {
		page.Items = page.Items[:limit]
		page.Next = cursor(page.Items[limit-1])
	}
	return page, err
}

func pageSize(limit int) int {
	const usual = 100
	if limit <= 0 {
		return usual
	}
	return min(limit, api.MaxPage)
}

// listNumbered is list with a number as the cursor, which is the last parameter of the query.
func listNumbered[T any](ctx context.Context, l *Ledger, limit int, query string, args []any, after string, first int64, number func(T) uint64, dest func(*T) []any) (api.Page[T], error) {
	n, err := position(after, first)
	if err != nil {
		return api.Page[T]{}, err
	}
	return list(ctx, l, limit, query, append(args, n), func(v T) string { return strconv.FormatUint(number(v), 10) }, dest)
}

func position(after string, first int64) (int64, error) {
	if after == "" {
		return first, nil
	}
	n, err := strconv.ParseInt(after, 10, 64)
	if err != nil || n < 0 {
		return 0, badCursor(after)
	}
	return n, nil
}

func badCursor(after string) error {
	return &api.RequestError{Field: "after", Value: after[:min(len(after), 32)], Rule: "the next of an earlier page"}
}

const selectResources = `SELECT r.name, COALESCE(m.deployment, ''), COALESCE(m.grp, ''), COALESCE(m.token, 0), COALESCE(m.seq, 0), COALESCE(m.digest, ''), COALESCE(m.session, ''),
	r.last_tick, r.jobs, r.jobs_version, r.firings, r.firings_pending, r.updated_ms
	FROM fenced_resource r LEFT JOIN tenure_mark m ON m.resource = r.name `

func resourceDest(r *api.Resource) []any {
	return []any{&r.Name, &r.Deployment, &r.Group, &r.Token, &r.Seq, &r.Digest, &r.Session, &r.LastTick, &r.Jobs, &r.JobsVersion, &r.Firings, &r.FiringsPending, &r.UpdatedMS}
}

// Resource returns a resource and its mark.
func (l *Ledger) Resource(ctx context.Context, name string) (r api.Resource, err error) {
	err = l.db.Row(ctx, selectResources+"WHERE r.name = $1", []any{name}, resourceDest(&r)...)
	return r, err
}

// Resources lists the resources by name.
func (l *Ledger) Resources(ctx context.Context, after string, limit int) (api.Page[api.Resource], error) {
	return list(ctx, l, limit, selectResources+"WHERE r.name > $1 ORDER BY r.name", []any{after},
		func(r api.Resource) string { return r.Name }, resourceDest)
}

func (l *Ledger) knownResources(ctx context.Context) (known map[string]state.Counters, err error) {
	known = make(map[string]state.Counters)
	err = l.db.Each(ctx, "SELECT name, jobs, jobs_version, firings, firings_pending FROM fenced_resource ORDER BY name LIMIT $1", []any{l.cfg.Resources}, func(rows *sql.Rows) error {
		var name string
		var c state.Counters
		err := rows.Scan(&name, &c.Jobs, &c.JobsVersion, &c.Firings, &c.Pending)
		known[name] = c
		return err
	})
	return known, err
}

// Sequence returns the state of a sequence.
func (l *Ledger) Sequence(ctx context.Context, resource, name string) (s api.Sequence, err error) {
	err = l.db.Row(ctx, "SELECT resource, name, last_seq, owner_token, updated_ms FROM sequence WHERE resource = $1 AND name = $2",
		[]any{resource, name}, &s.Resource, &s.Name, &s.LastSeq, &s.Token, &s.UpdatedMS)
	return s, err
}

// Allocations lists what was taken of a sequence, oldest first.
func (l *Ledger) Allocations(ctx context.Context, resource, name, after string, limit int) (api.Page[api.Allocation], error) {
	return listNumbered(ctx, l, limit, "SELECT n, first_seq, last_seq, token, at_ms FROM allocation WHERE resource = $1 AND name = $2 AND n > $3 ORDER BY n",
		[]any{resource, name}, after, 0, func(a api.Allocation) uint64 { return a.N },
		func(a *api.Allocation) []any { return []any{&a.N, &a.First, &a.Last, &a.Token, &a.AtMS} })
}

// Checkpoint returns a checkpoint.
func (l *Ledger) Checkpoint(ctx context.Context, resource, name string) (c api.Checkpoint, err error) {
	err = l.db.Row(ctx, "SELECT resource, name, version, token, value, updated_ms FROM checkpoint WHERE resource = $1 AND name = $2",
		[]any{resource, name}, &c.Resource, &c.Name, &c.Version, &c.Token, database.JSON{To: &c.Value}, &c.UpdatedMS)
	return c, err
}

const recordColumns = "resource, name, version, token, value, updated_ms"

func recordDest(r *api.Record) []any {
	return []any{&r.Resource, &r.Key, &r.Version, &r.Token, database.JSON{To: &r.Value}, &r.UpdatedMS}
}

// Record returns a record.
func (l *Ledger) Record(ctx context.Context, resource, key string) (r api.Record, err error) {
	err = l.db.Row(ctx, "SELECT "+recordColumns+" FROM record WHERE resource = $1 AND name = $2", []any{resource, key}, recordDest(&r)...)
	return r, err
}

// Records lists the records of a resource by key.
func (l *Ledger) Records(ctx context.Context, resource, after string, limit int) (api.Page[api.Record], error) {
	return list(ctx, l, limit, "SELECT "+recordColumns+" FROM record WHERE resource = $1 AND name > $2 ORDER BY name", []any{resource, after},
		func(r api.Record) string { return r.Key }, recordDest)
}

// Ticks lists the log of a resource, oldest first.
func (l *Ledger) Ticks(ctx context.Context, resource, after string, limit int) (api.Page[api.Tick], error) {
	return listNumbered(ctx, l, limit, "SELECT n, token, seq, tick_key, payload, at_ms FROM tick WHERE resource = $1 AND n > $2 ORDER BY n",
		[]any{resource}, after, 0, func(t api.Tick) uint64 { return t.N },
		func(t *api.Tick) []any {
			return []any{&t.N, &t.Token, &t.Seq, &t.Key, database.JSON{To: &t.Payload}, &t.AtMS}
		})
}

// Rejections lists refused writes, newest first.
func (l *Ledger) Rejections(ctx context.Context, before string, limit int) (r api.Rejections, err error) {
	const all = 1 << 62
	r.Page, err = listNumbered(ctx, l, limit, `SELECT id, resource, deployment, grp, token, seq, holder, reason, current_token, applied, at_ms
		FROM rejection WHERE id < $1 ORDER BY id DESC`, nil, before, all, func(r api.Rejection) uint64 { return r.ID },
		func(r *api.Rejection) []any {
			return []any{&r.ID, &r.Resource, &r.Deployment, &r.Group, &r.Token, &r.Seq, &r.Holder, &r.Reason, &r.CurrentToken, database.Bool{To: &r.Applied}, &r.AtMS}
		})
	if err != nil {
		return r, err
	}
	err = l.db.Row(ctx, "SELECT value, (SELECT COUNT(*) FROM rejection) FROM ledger_counter WHERE name = 'rejections'", nil, &r.Total, &r.Kept)
	return r, err
}

// Shared returns a shared record.
func (l *Ledger) Shared(ctx context.Context, deployment, space, key string) (r api.SharedRecord, err error) {
	err = l.db.Row(ctx, "SELECT deployment, space, name, version, value, updated_ms FROM shared WHERE deployment = $1 AND space = $2 AND name = $3",
		[]any{deployment, space, key}, &r.Deployment, &r.Space, &r.Key, &r.Version, database.JSON{To: &r.Value}, &r.UpdatedMS)
	return r, err
}

const jobColumns = "name, schedule, misfire, payload, next_ms, token, updated_ms"

func jobDest(j *api.Job) []any {
	return []any{&j.Key, &j.Schedule, &j.Misfire, database.JSON{To: &j.Payload}, &j.NextMS, &j.Token, &j.UpdatedMS}
}

// selectJobs uses the index job_by_time, so ten million jobs are read as fast as ten.
const selectJobs = "SELECT " + jobColumns + " FROM job WHERE resource = $1 AND (next_ms, name) > ($2, $3) AND next_ms < $4 ORDER BY next_ms, name"

// Jobs lists the jobs that are due before an instant, the next first. beforeMS 0 means all. The
// resource need not exist.
func (l *Ledger) Jobs(ctx context.Context, resource string, beforeMS int64, after string, limit int) (p api.Jobs, err error) {
	ms, key, err := due(after)
	if err != nil {
		return p, err
	}
	if beforeMS < 0 || beforeMS > int64(api.MaxSequence) {
		return p, &api.RequestError{Field: "before_ms", Value: strconv.FormatInt(beforeMS, 10), Rule: "milliseconds since 1970, from 1 to 2^53-1"}
	}
	if beforeMS == 0 {
		beforeMS = int64(api.MaxSequence) + 1
	}
	// The version is read first: the page may then have more jobs than that version, never
	// fewer.
	r, err := l.Resource(ctx, resource)
	if err != nil && !errors.Is(err, api.ErrNotFound) {
		return p, err
	}
	p.Version, p.Total = r.JobsVersion, r.Jobs
	p.Page, err = list(ctx, l, limit, selectJobs, []any{resource, ms, key, beforeMS},
		func(j api.Job) string { return strconv.FormatInt(j.NextMS, 10) + ":" + j.Key }, jobDest)
	p.NowMS = l.NowMS()
	return p, err
}

// due reads a cursor of Jobs.
func due(after string) (ms int64, key string, err error) {
	if after == "" {
		return 0, "", nil
	}
	text, key, _ := strings.Cut(after, ":")
	ms, err = strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || api.Name("after", key) != nil {
		return 0, "", badCursor(after)
	}
	return ms, key, nil
}

// Job returns a job.
func (l *Ledger) Job(ctx context.Context, resource, key string) (j api.Job, err error) {
	err = l.db.Row(ctx, "SELECT "+jobColumns+" FROM job WHERE resource = $1 AND name = $2", []any{resource, key}, jobDest(&j)...)
	return j, err
}

const (
	selectFirings        = "SELECT n, job, at_ms, token, fired_ms, payload, worker, delivered_ms FROM firing WHERE resource = $1 AND n > $2 ORDER BY n"
	selectPendingFirings = "SELECT n, job, at_ms, token, fired_ms, payload, worker, delivered_ms FROM firing {by_state} WHERE resource = $1 AND pending = 1 AND n > $2 ORDER BY n"
)

// Firings lists the firings of a resource, or those that are not delivered yet, oldest first.
func (l *Ledger) Firings(ctx context.Context, resource string, pendingOnly bool, after string, limit int) (api.Page[api.Firing], error) {
	query := selectFirings
	if pendingOnly {
		query = selectPendingFirings
	}
	return listNumbered(ctx, l, limit, query, []any{resource}, after, 0, func(f api.Firing) uint64 { return f.N },
		func(f *api.Firing) []any {
			return []any{&f.N, &f.Job, &f.AtMS, &f.Token, &f.FiredMS, database.JSON{To: &f.Payload}, &f.Worker, &f.DeliveredMS}
		})
}

// NowMS is the ledger's wall clock.
func (l *Ledger) NowMS() int64 { return l.cfg.Now().UnixMilli() }
