package ledger

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// touched is what a group reads and may change.
type touched struct {
	resources                                       map[string]bool
	sequences, checkpoints, records, tickKeys, jobs map[at]bool
	firings                                         map[moment]bool
	shared                                          map[sharedKey]bool
}

// touch ignores ops that were refused already.
func touch(group []*op, verdicts []verdict) touched {
	t := touched{resources: map[string]bool{}}
	for i, o := range group {
		switch {
		case verdicts[i].err != nil, o.kind == probe, o.kind == accept:
			continue
		case o.kind == share:
			put(&t.shared, keyOf(*o.shared))
			continue
		}
		r := o.batch.Resource
		t.resources[r] = true
		for _, w := range o.batch.Writes {
			switch {
			case w.Sequence != nil:
				put(&t.sequences, at{r, w.Sequence.Name})
			case w.Checkpoint != nil:
				put(&t.checkpoints, at{r, w.Checkpoint.Name})
			case w.Record != nil:
				put(&t.records, at{r, w.Record.Key})
			case w.Tick != nil && w.Tick.Key != "":
				put(&t.tickKeys, at{r, w.Tick.Key})
			case w.Job != nil:
				put(&t.jobs, at{r, w.Job.Key})
			case w.Fire != nil:
				put(&t.jobs, at{r, w.Fire.Job})
				if !w.Fire.Skip {
					put(&t.firings, moment{r, w.Fire.Job, w.Fire.AtMS})
				}
			case w.Delivered != nil:
				put(&t.firings, moment{r, w.Delivered.Job, w.Delivered.AtMS})
			}
		}
	}
	return t
}

func put[K comparable](m *map[K]bool, k K) {
	if *m == nil {
		*m = make(map[K]bool)
	}
	(*m)[k] = true
}

func keys(m map[at]bool) []row {
	rows := make([]row, 0, len(m))
	for k := range m {
		rows = append(rows, row{k.resource, k.name})
	}
	return rows
}

// load reads what the group touches into a state. It holds the marks of the resources until the
// transaction ends. A mark protects everything that belongs to its resource.
func (t *tx) load(ctx context.Context, on touched, into *state) (err error) {
	names := slices.Collect(maps.Keys(on.resources))
	if into.marks, err = t.dialect.On(t).Hold(ctx, names...); err != nil {
		return err
	}
	found := make(map[string]resourceRow, len(names))
	wanted := make([]row, 0, len(names))
	for _, name := range names {
		wanted = append(wanted, row{name})
	}
	err = readRows(ctx, t, `SELECT name, last_tick, jobs, jobs_version, firings, firings_pending
		FROM fenced_resource WHERE name IN (SELECT e->>0 FROM {rows})`, wanted, found, func(name *string, r *resourceRow) []any {
		r.exists = true
		return []any{name, &r.lastTick, &r.counters.jobs, &r.counters.jobsVersion, &r.counters.firings, &r.counters.pending}
	})
	if err != nil {
		return err
	}
	if len(found) < len(names) {
		if err := t.QueryRow(ctx, "SELECT COUNT(*) FROM fenced_resource").Scan(&into.count); err != nil {
			return err
		}
	}
	into.resources = make(map[string]*resourceRow, len(names))
	for _, name := range names {
		r := found[name]
		into.resources[name] = &r
	}
	return t.loadContents(ctx, on, into)
}

func (t *tx) loadContents(ctx context.Context, on touched, into *state) error {
	into.sequences, into.checkpoints, into.records = map[at]sequenceRow{}, map[at]versionRow{}, map[at]versionRow{}
	into.keyed, into.open = map[at]uint64{}, map[at]int{}
	version := func(k *at, r *versionRow) []any { return []any{&k.resource, &k.name, &r.version} }
	return errors.Join(
		readRows(ctx, t, `SELECT s.resource, s.name, s.last_seq, s.owner_token, s.allocations
			FROM sequence s JOIN {rows} ON s.resource = e->>0 AND s.name = e->>1`, keys(on.sequences), into.sequences, func(k *at, r *sequenceRow) []any {
			return []any{&k.resource, &k.name, &r.lastSeq, &r.token, &r.allocations}
		}),
		readRows(ctx, t, selectVersions("checkpoint"), keys(on.checkpoints), into.checkpoints, version),
		readRows(ctx, t, selectVersions("record"), keys(on.records), into.records, version),
		readRows(ctx, t, `SELECT t.resource, t.tick_key, t.n
			FROM tick t JOIN {rows} ON t.resource = e->>0 AND t.tick_key = e->>1 WHERE t.tick_key <> ''`, keys(on.tickKeys), into.keyed, func(k *at, n *uint64) []any {
			return []any{&k.resource, &k.name, n}
		}),
		t.loadJobs(ctx, on, into),
		t.loadShared(ctx, on.shared, &into.shared))
}

func selectVersions(table string) string {
	return `SELECT v.resource, v.name, v.version FROM ` + table + ` v JOIN {rows} ON v.resource = e->>0 AND v.name = e->>1`
}
