package state

import (
	"fmt"
	"slices"

	"github.com/tenurehq/tenure/reference/ledger/api"
)

// draft makes the writes of one batch in the state, and can undo them.
type draft struct {
	*State
	batch    api.Batch
	lastTick uint64
	counters Counters

	undo                     []func()
	ticksHad, allocationsHad int
}

// set changes the state until the draft is undone.
func set[K key, R any](d *draft, t *table[K, R], k K, r R) { d.undo = append(d.undo, t.set(k, r)) }

func (d *draft) takeBack() {
	for _, undo := range slices.Backward(d.undo) {
		undo()
	}
	d.ticks, d.allocations = d.ticks[:d.ticksHad], d.allocations[:d.allocationsHad]
}

// writes makes all writes or, on an error, none.
func (d *draft) writes() (api.Answer, error) {
	d.ticksHad, d.allocationsHad = len(d.ticks), len(d.allocations)
	a := api.Answer{Resource: d.batch.Resource, Token: d.batch.Stamp.Token, Seq: d.batch.Stamp.Seq, AtMS: d.NowMS, Outcomes: make([]api.Outcome, 0, len(d.batch.Writes))}
	for i, w := range d.batch.Writes {
		o, err := d.write(w)
		if err != nil {
			d.takeBack()
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
		row := d.checkpoints.rows[here]
		o.Checkpoint = &api.VersionOutcome{Version: row.version + 1}
		set(d, &d.checkpoints, here, version{row.version + 1, d.batch.Stamp.Token, string(w.Checkpoint.Value)})
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
		if n := d.keyed.rows[here]; n != 0 {
			return &api.TickOutcome{N: n, Duplicate: true}
		}
		set(d, &d.keyed, here, d.lastTick+1)
	}
	d.lastTick++
	s := d.batch.Stamp
	d.ticks = append(d.ticks, tick{d.batch.Resource, api.Tick{N: d.lastTick, Token: s.Token, Seq: s.Seq, Key: w.Key, Payload: w.Payload, AtMS: d.NowMS}})
	return &api.TickOutcome{N: d.lastTick}
}

func (d *draft) record(w api.RecordWrite) (*api.VersionOutcome, error) {
	here := at{d.batch.Resource, w.Key}
	row := d.records.rows[here]
	if w.Version != nil && *w.Version != row.version {
		return nil, &api.VersionError{Key: w.Key, Version: *w.Version, Current: row.version}
	}
	set(d, &d.records, here, version{row.version + 1, d.batch.Stamp.Token, string(w.Value)})
	return &api.VersionOutcome{Version: row.version + 1}, nil
}

// sequence hands out numbers in order, each once. With fencing off it trusts the leader, and may
// hand out a number twice.
func (d *draft) sequence(w api.SequenceWrite) (*api.Range, error) {
	here := at{d.batch.Resource, w.Name}
	row := d.sequences.rows[here]
	given := api.Range{First: w.First, Last: w.Last}
	if w.N > 0 {
		given = api.Range{First: row.lastSeq + 1, Last: row.lastSeq + w.N}
	}
	if given.First != row.lastSeq+1 && !d.Unfenced || given.Last > api.MaxSequence {
		return nil, &api.SequenceError{Name: w.Name, First: given.First, LastSeq: row.lastSeq}
	}
	token := d.batch.Stamp.Token
	// Consecutive ranges in one commit are one allocation.
	if i, open := d.open[here]; open && row.token == token && row.lastSeq+1 == given.First {
		was := d.allocations[i].Last
		d.undo = append(d.undo, func() { d.allocations[i].Last = was })
		d.allocations[i].Last = given.Last
	} else {
		row.allocations++
		d.undo = append(d.undo, func() {
			if d.open[here] = i; !open {
				delete(d.open, here)
			}
		})
		d.open[here] = len(d.allocations)
		d.allocations = append(d.allocations, allocation{here, api.Allocation{N: row.allocations, First: given.First, Last: given.Last, Token: token, AtMS: d.NowMS}})
	}
	row.lastSeq, row.token = given.Last, token
	set(d, &d.sequences, here, row)
	return &given, nil
}
