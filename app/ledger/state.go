package ledger

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tenurehq/tenure/app/ledger/api"
	"github.com/tenurehq/tenure/fence"
)

// at names something of a resource.
type at struct{ resource, name string }

// state is the part of the ledger that a group touches, as it is in the database
// under the group's locks. Batches are applied to it one after another; save writes
// what they changed. It has no I/O.
type state struct {
	unfenced     bool
	maxResources int
	nowMS        int64

	resources   map[string]*resourceRow
	count       int // of resources that exist, if any of the group's does not
	sequences   map[at]sequenceRow
	checkpoints map[at]versionRow
	records     map[at]versionRow
	keyed       map[at]uint64 // ticks by key
	jobs        map[at]jobRow
	firings     map[moment]firingRow
	shared      sharedState

	ticks       []tickRow
	allocations []allocationRow
	open        map[at]int // the latest allocation of a sequence in this group
	rejections  []api.Rejection
}

type resourceRow struct {
	mark     fence.Mark
	lastTick uint64
	counters counters
	answer   string // to the last strict batch, as JSON
	fresh    bool   // there was no row
	changed  bool
}

type sequenceRow struct {
	lastSeq     uint64
	token       fence.Token
	allocations uint64
	changed     bool
}

type versionRow struct {
	version uint64
	token   fence.Token
	value   string
	changed bool
}

type tickRow struct {
	resource string
	api.Tick
}

type allocationRow struct {
	at
	api.Allocation
}

// kind is what is asked of a resource.
type kind uint8

const (
	write   kind = iota + 1
	seal         // raise the mark
	advance      // raise it past the slip rule
	share        // replace a shared record: of no resource
	probe        // write something, to see that it can be
	accept       // take the state for valid although callers have seen a later one
)

// verdict is what became of one batch.
type verdict struct {
	answer api.Answer
	err    error
	// counters are the resource's, afterwards.
	counters counters
	// version is that of the shared record, afterwards.
	version uint64
	// refused is what the rule said, also where fencing is off.
	refused error
	// accepted: it took effect now.
	accepted bool
	// violation: it took effect although a higher token had been accepted.
	violation bool
}

// apply judges a batch and, if it is admitted, makes its writes: all or none.
func (s *state) apply(k kind, b api.Batch) verdict {
	r := s.resources[b.Resource]
	next, retry, err := admit(r.mark, k, b)
	switch {
	case err != nil && (!s.unfenced || isInvalid(err)):
		s.reject(b, r.mark, err, false)
		return verdict{err: err, refused: err}
	case retry:
		a, err := r.retried()
		return verdict{answer: a, err: err}
	}
	if r.mark.Token == 0 && r.fresh && s.count >= s.maxResources {
		return verdict{err: api.ErrTooManyResources}
	}
	d := &draft{state: s, batch: b, lastTick: r.lastTick, counters: r.counters}
	answer, werr := d.writes()
	if werr != nil {
		return verdict{err: werr}
	}
	v := verdict{answer: answer, counters: d.counters, refused: err, accepted: k != advance, violation: k != advance && b.Stamp.Token < r.mark.Token}
	if err != nil {
		s.reject(b, r.mark, err, true)
		next = r.mark
	}
	if r.mark.Token == 0 && r.fresh {
		s.count++
	}
	stored := r.answer
	switch {
	case strict(k, b) && err == nil:
		text, jerr := json.Marshal(answer)
		if jerr != nil {
			return verdict{err: jerr}
		}
		stored = string(text)
	case next.Seq == 0:
		stored = ""
	}
	if next != r.mark || d.lastTick != r.lastTick || d.counters != r.counters || stored != r.answer {
		r.mark, r.lastTick, r.counters, r.answer, r.changed = next, d.lastTick, d.counters, stored, true
	}
	d.keep()
	return v
}

func strict(k kind, b api.Batch) bool { return k == write && (b.Stamp.Seq > 0 || b.Digest != "") }

// admit is the rule, for each kind.
func admit(m fence.Mark, k kind, b api.Batch) (next fence.Mark, retry bool, err error) {
	switch {
	case k == advance:
		next, err = m.Advance(b.Stamp)
	case strict(k, b):
		var v fence.Verdict
		next, v, err = m.AdmitStrict(b.Stamp, b.Digest)
		retry = v == fence.Retry
	default:
		next, err = m.Admit(b.Stamp)
	}
	return next, retry, err
}

func isInvalid(err error) bool {
	var invalid *fence.InvalidError
	return errors.As(err, &invalid)
}

func (r *resourceRow) retried() (api.Answer, error) {
	a := api.Answer{Retried: true}
	if err := json.Unmarshal([]byte(r.answer), &a); err != nil {
		return a, fmt.Errorf("the stored answer cannot be read: %w", err)
	}
	return a, nil
}

func (s *state) reject(b api.Batch, m fence.Mark, err error, applied bool) {
	s.rejections = append(s.rejections, api.Rejection{
		Resource: b.Resource, Deployment: b.Stamp.Deployment, Group: b.Stamp.Group, Token: b.Stamp.Token, Seq: b.Stamp.Seq,
		Holder: b.Holder, Reason: api.Reason(err), CurrentToken: m.Token, Applied: applied, AtMS: s.nowMS,
	})
}

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
	copyInto(s.keyed, d.keyed)
	copyInto(s.sequences, d.sequences)
	copyInto(s.checkpoints, d.checkpoints)
	copyInto(s.records, d.records)
	copyInto(s.jobs, d.jobs)
	copyInto(s.firings, d.firings)
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

func copyInto[K comparable, V any](to, from map[K]V) {
	for k, v := range from {
		to[k] = v
	}
}
