package state

import (
	"context"
	"errors"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/database"
)

// WantShared wants what a write to a shared record needs.
func (s *State) WantShared(w api.SharedWrite) {
	s.shared.records.want(keyOf(w))
	s.shared.marks.want(name(w.Space))
}

// Want wants what a batch needs.
func (s *State) Want(b api.Batch) {
	r := b.Resource
	s.resources.want(name(r))
	for _, w := range b.Writes {
		switch {
		case w.Sequence != nil:
			s.sequences.want(at{r, w.Sequence.Name})
		case w.Checkpoint != nil:
			s.checkpoints.want(at{r, w.Checkpoint.Name})
		case w.Record != nil:
			s.records.want(at{r, w.Record.Key})
		case w.Tick != nil && w.Tick.Key != "":
			s.keyed.want(at{r, w.Tick.Key})
		case w.Job != nil:
			s.jobs.want(at{r, w.Job.Key})
		case w.Fire != nil:
			s.jobs.want(at{r, w.Fire.Job})
			if !w.Fire.Skip {
				s.firings.want(moment{r, w.Fire.Job, w.Fire.AtMS})
			}
		case w.Delivered != nil:
			s.firings.want(moment{r, w.Delivered.Job, w.Delivered.AtMS})
		}
	}
}

// Tests ask the database how it does the exported statements.
var (
	selectResources   = selectRows("fenced_resource", "name", "last_tick jobs jobs_version firings firings_pending")
	selectSequences   = selectRows("sequence", "resource name", "last_seq owner_token allocations")
	selectCheckpoints = selectRows("checkpoint", "resource name", "version")
	selectRecords     = selectRows("record", "resource name", "version")
	selectTicks       = selectRows("tick", "resource tick_key", "n") + " WHERE t.tick_key <> ''"
	SelectJobs        = selectRows("job", "resource name", "schedule misfire payload next_ms")
	SelectFirings     = selectRows("firing", "resource job at_ms#", "n pending")
	selectShared      = selectRows("shared", "deployment space name", "version")
	selectMarks       = selectRows("tenure_mark", "resource", "deployment grp token")
)

// Load reads what is wanted. It holds the marks of the resources until the transaction ends. A
// mark protects everything that belongs to its resource.
func (s *State) Load(ctx context.Context, tx *database.Tx) (err error) {
	names := make([]string, 0, len(s.resources.wanted))
	for k := range s.resources.wanted {
		names = append(names, string(k))
	}
	if s.marks, err = tx.Dialect.On(tx).Hold(ctx, names...); err != nil {
		return err
	}
	err = s.resources.load(ctx, tx, selectResources, func(k *name, r *resource) []any {
		r.exists = true
		return []any{k, &r.lastTick, &r.counters.Jobs, &r.counters.JobsVersion, &r.counters.Firings, &r.counters.Pending}
	})
	if err == nil && len(s.resources.rows) < len(names) {
		err = tx.QueryRow(ctx, "SELECT COUNT(*) FROM fenced_resource").Scan(&s.count)
	}
	if err != nil {
		return err
	}
	s.open = make(map[at]int)
	loadVersion := func(k *at, r *version) []any { return []any{&k.resource, &k.name, &r.version} }
	return errors.Join(
		s.sequences.load(ctx, tx, selectSequences, func(k *at, r *sequence) []any {
			return []any{&k.resource, &k.name, &r.lastSeq, &r.token, &r.allocations}
		}),
		s.checkpoints.load(ctx, tx, selectCheckpoints, loadVersion),
		s.records.load(ctx, tx, selectRecords, loadVersion),
		s.keyed.load(ctx, tx, selectTicks, func(k *at, n *uint64) []any { return []any{&k.resource, &k.name, n} }),
		s.jobs.load(ctx, tx, SelectJobs, func(k *at, r *job) []any {
			r.exists = true
			return []any{&k.resource, &k.name, &r.schedule, &r.misfire, &r.payload, &r.nextMS}
		}),
		s.firings.load(ctx, tx, SelectFirings, func(k *moment, r *firing) []any {
			return []any{&k.resource, &k.job, &k.atMS, &r.n, database.Bool{To: &r.pending}}
		}),
		s.shared.load(ctx, tx))
}

// load locks the counters before it reads: a record that does not exist cannot be locked.
func (s *shared) load(ctx context.Context, tx *database.Tx) error {
	if len(s.records.wanted) == 0 {
		return nil
	}
	return errors.Join(
		tx.QueryRow(ctx, "SELECT value FROM ledger_counter WHERE name = 'shared' {lock}").Scan(&s.count),
		tx.QueryRow(ctx, "SELECT value FROM ledger_counter WHERE name = 'shared_floor'").Scan(&s.floor),
		s.marks.load(ctx, tx, selectMarks, func(k *name, m *fence.Mark) []any { return []any{k, &m.Deployment, &m.Group, &m.Token} }),
		s.records.load(ctx, tx, selectShared, func(k *sharedKey, r *record) []any {
			return []any{&k.deployment, &k.space, &k.name, &r.version}
		}))
}
