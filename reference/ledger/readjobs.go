package ledger

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
)

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
