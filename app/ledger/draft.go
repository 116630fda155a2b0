package ledger

import (
	"fmt"
	"maps"

	"github.com/tenurehq/tenure/app/ledger/api"
)

// draft is the writes of one batch before it is known that all can be made.
type draft struct {
	state *state
	batch api.Batch

	lastTick    uint64
	counters    counters
	ticks       []tickRow
	keyed       map[at]uint64
	sequences   map[at]sequenceRow
	allocations []allocationRow
	checkpoints map[at]versionRow
	records     map[at]versionRow
	jobs        map[at]jobRow
	firings     map[moment]firingRow
}

func (d *draft) writes() (api.Answer, error) {
	a := api.Answer{Resource: d.batch.Resource, Token: d.batch.Stamp.Token, Seq: d.batch.Stamp.Seq, AtMS: d.state.nowMS, Outcomes: make([]api.Outcome, 0, len(d.batch.Writes))}
	for i, w := range d.batch.Writes {
		o, err := d.write(w)
		if err != nil {
			if len(d.batch.Writes) > 1 {
				err = fmt.Errorf("write %d: %w", i, err)
			}
			return a, err
		}
		a.Outcomes = append(a.Outcomes, o)
	}
	return a, nil
}

func (d *draft) write(w api.Write) (o api.Outcome, err error) {
	switch {
	case w.Tick != nil:
		o.Tick = d.tick(*w.Tick)
	case w.Checkpoint != nil:
		here := at{d.batch.Resource, w.Checkpoint.Name}
		row := get(here, d.checkpoints, d.state.checkpoints)
		o.Checkpoint = &api.VersionOutcome{Version: row.version + 1}
		put(&d.checkpoints, here, versionRow{row.version + 1, d.batch.Stamp.Token, string(w.Checkpoint.Value), true})
	case w.Record != nil:
		o.Record, err = d.record(*w.Record)
	case w.Sequence != nil:
		o.Sequence, err = d.sequence(*w.Sequence)
	case w.Job != nil:
		o.Job = d.job(*w.Job)
	case w.Fire != nil:
		o.Fire = d.fire(*w.Fire)
	default:
		o.Delivered = d.delivered(*w.Delivered)
	}
	return o, err
}

func (d *draft) tick(w api.TickWrite) *api.TickOutcome {
	here := at{d.batch.Resource, w.Key}
	if w.Key != "" {
		if n := get(here, d.keyed, d.state.keyed); n != 0 {
			return &api.TickOutcome{N: n, Duplicate: true}
		}
		put(&d.keyed, here, d.lastTick+1)
	}
	d.lastTick++
	s := d.batch.Stamp
	d.ticks = append(d.ticks, tickRow{d.batch.Resource, api.Tick{N: d.lastTick, Token: s.Token, Seq: s.Seq, Key: w.Key, Payload: w.Payload, AtMS: d.state.nowMS}})
	return &api.TickOutcome{N: d.lastTick}
}

func (d *draft) record(w api.RecordWrite) (*api.VersionOutcome, error) {
	here := at{d.batch.Resource, w.Key}
	row := get(here, d.records, d.state.records)
	if w.Version != nil && *w.Version != row.version {
		return nil, &api.VersionError{Key: w.Key, Version: *w.Version, Current: row.version}
	}
	put(&d.records, here, versionRow{row.version + 1, d.batch.Stamp.Token, string(w.Value), true})
	return &api.VersionOutcome{Version: row.version + 1}, nil
}

// sequence hands out numbers: each once, in order. With fencing off it believes
// the leader, and then it may not.
func (d *draft) sequence(w api.SequenceWrite) (*api.Range, error) {
	here := at{d.batch.Resource, w.Name}
	row := get(here, d.sequences, d.state.sequences)
	given := api.Range{First: w.First, Last: w.Last}
	if w.N > 0 {
		given = api.Range{First: row.lastSeq + 1, Last: row.lastSeq + w.N}
	}
	if given.First != row.lastSeq+1 && !d.state.unfenced || given.Last > api.MaxSequence {
		return nil, &api.SequenceError{Name: w.Name, First: given.First, LastSeq: row.lastSeq}
	}
	token := d.batch.Stamp.Token
	// Ranges that follow each other in one commit are one allocation.
	if row.changed && row.token == token && row.lastSeq+1 == given.First {
		d.allocations = append(d.allocations, allocationRow{here, api.Allocation{First: given.First, Last: given.Last, Token: token}})
	} else {
		row.allocations++
		d.allocations = append(d.allocations, allocationRow{here, api.Allocation{N: row.allocations, First: given.First, Last: given.Last, Token: token, AtMS: d.state.nowMS}})
	}
	row.lastSeq, row.token, row.changed = given.Last, token, true
	put(&d.sequences, here, row)
	return &given, nil
}

// keep makes the draft part of the state.
func (d *draft) keep() {
	s := d.state
	s.ticks = append(s.ticks, d.ticks...)
	for _, a := range d.allocations {
		if i, ok := s.open[a.at]; ok && a.N == 0 {
			s.allocations[i].Last = a.Last
			continue
		}
		s.open[a.at] = len(s.allocations)
		s.allocations = append(s.allocations, a)
	}
	maps.Copy(s.keyed, d.keyed)
	maps.Copy(s.sequences, d.sequences)
	maps.Copy(s.checkpoints, d.checkpoints)
	maps.Copy(s.records, d.records)
	maps.Copy(s.jobs, d.jobs)
	maps.Copy(s.firings, d.firings)
}

func get[K comparable, V any](k K, first, then map[K]V) V {
	if v, ok := first[k]; ok {
		return v
	}
	return then[k]
}

func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[k] = v
}
