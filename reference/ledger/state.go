package ledger

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// at names something of a resource.
type at struct{ resource, name string }

// state is the part of the ledger that a group reads and changes, as it is in the database under
// the locks of the group. Batches are applied to it one after another, and save writes what they
// changed. It does no I/O.
type state struct {
	unfenced     bool
	maxResources int
	nowMS        int64

	marks       *sqlfence.Held
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
	exists   bool
	lastTick uint64
	counters counters
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

// kind is what an op asks for.
type kind uint8

const (
	write   kind = iota + 1
	seal         // raise the mark
	advance      // raise the mark past the slip rule, for operators
	share        // write a shared record, which belongs to no resource
	probe        // write something, to see whether the database can write
	accept       // accept the state although callers have seen a later one
)

// verdict is the outcome of one op.
type verdict struct {
	answer api.Answer
	err    error
	// counters are those of the resource afterwards.
	counters counters
	// version is that of the shared record afterwards.
	version uint64
	// refused is the refusal of the rule, also if fencing is off.
	refused error
	// accepted: it took effect now.
	accepted bool
	// violation: it took effect although a higher token had been accepted.
	violation bool
}

// apply checks a batch and, if it is admitted, makes its writes: all or none.
func (s *state) apply(k kind, b api.Batch) verdict {
	r, mark := s.resources[b.Resource], s.marks.Mark(b.Resource)
	next, retry, err := admit(mark, k, b)
	switch {
	case err != nil && (!s.unfenced || isInvalid(err)):
		s.reject(b, mark, err, false)
		return verdict{err: err, refused: err}
	case retry:
		a := api.Answer{Retried: true}
		if err := json.Unmarshal(s.marks.Answer(b.Resource), &a); err != nil {
			return verdict{err: fmt.Errorf("read the stored answer: %w", err)}
		}
		return verdict{answer: a}
	case !r.exists && s.count >= s.maxResources:
		return verdict{err: api.ErrTooManyResources}
	}
	d := &draft{state: s, batch: b, lastTick: r.lastTick, counters: r.counters}
	answer, werr := d.writes()
	if werr != nil {
		return verdict{err: werr}
	}
	v := verdict{answer: answer, counters: d.counters, refused: err, accepted: k != advance, violation: k != advance && b.Stamp.Token < mark.Token}
	var stored []byte // for a retry
	switch {
	case err != nil:
		s.reject(b, mark, err, true)
		next = mark
	case strict(k, b):
		if stored, werr = json.Marshal(answer); werr != nil {
			d.takeBack()
			return verdict{err: werr}
		}
	}
	if !r.exists {
		s.count++
	}
	if !r.exists || next != mark || stored != nil || d.lastTick != r.lastTick || d.counters != r.counters {
		*r = resourceRow{exists: true, lastTick: d.lastTick, counters: d.counters, changed: true}
	}
	s.marks.Set(b.Resource, next, stored)
	return v
}

func strict(k kind, b api.Batch) bool { return k == write && (b.Stamp.Seq > 0 || b.Digest != "") }

// admit applies the rule of package fence for each kind.
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

func (s *state) reject(b api.Batch, m fence.Mark, err error, applied bool) {
	s.rejections = append(s.rejections, api.Rejection{
		Resource: b.Resource, Deployment: b.Stamp.Deployment, Group: b.Stamp.Group, Token: b.Stamp.Token, Seq: b.Stamp.Seq,
		Holder: b.Holder, Reason: api.Reason(err), CurrentToken: m.Token, Applied: applied, AtMS: s.nowMS,
	})
}
