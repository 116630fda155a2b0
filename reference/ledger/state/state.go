// Package state is the part of a ledger that a group of batches reads and changes: what is in
// the database under the locks of the group. Batches are applied to it one after another, and
// Save writes what they changed. The rule of package fence decides about each.
package state

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// State is what a group touches. First the group wants what it needs, then Load reads it.
type State struct {
	Unfenced     bool
	MaxResources int
	MaxShared    uint64
	NowMS        int64

	marks       *sqlfence.Held
	count       int // of resources that exist, if any of the group's does not
	resources   table[name, resource]
	sequences   table[at, sequence]
	checkpoints table[at, version]
	records     table[at, version]
	keyed       table[at, uint64] // ticks by key
	jobs        table[at, job]
	firings     table[moment, firing]
	shared      shared

	ticks       []tick
	allocations []allocation
	open        map[at]int // the latest allocation of a sequence in this group
	rejections  []api.Rejection
}

// Counters are kept with the resource: counting ten million rows takes seconds.
type Counters struct {
	Jobs, JobsVersion, Firings, Pending uint64
}

type resource struct {
	exists   bool
	lastTick uint64
	counters Counters
}

type sequence struct {
	lastSeq     uint64
	token       fence.Token
	allocations uint64
}

type version struct {
	version uint64
	token   fence.Token
	value   string
}

type tick struct {
	resource string
	api.Tick
}

type allocation struct {
	at
	api.Allocation
}

// Kind is what is asked of a resource.
type Kind uint8

// The kinds.
const (
	Write   Kind = iota + 1
	Seal         // raise the mark
	Advance      // raise the mark past the slip rule, for operators
)

// Verdict is the outcome of a batch or of a write to a shared record.
type Verdict struct {
	Answer api.Answer
	Err    error
	// Counters are those of the resource afterwards.
	Counters Counters
	// Version is that of the shared record afterwards.
	Version uint64
	// Refused is the refusal of the rule, also if fencing is off.
	Refused error
	// Accepted: it took effect now.
	Accepted bool
	// Violation: it took effect although a higher token had been accepted.
	Violation bool
}

// Apply checks a batch and, if it is admitted, makes its writes: all or none.
func (s *State) Apply(k Kind, b api.Batch) Verdict {
	r, mark := s.resources.rows[name(b.Resource)], s.marks.Mark(b.Resource)
	next, retry, err := admit(mark, k, b)
	switch {
	case err != nil && (!s.Unfenced || isInvalid(err)):
		s.reject(b, mark, err, false)
		return Verdict{Err: err, Refused: err}
	case retry:
		a := api.Answer{Retried: true}
		if err := json.Unmarshal(s.marks.Answer(b.Resource), &a); err != nil {
			return Verdict{Err: fmt.Errorf("read the stored answer: %w", err)}
		}
		return Verdict{Answer: a}
	case !r.exists && s.count >= s.MaxResources:
		return Verdict{Err: api.ErrTooManyResources}
	}
	d := &draft{State: s, batch: b, lastTick: r.lastTick, counters: r.counters}
	answer, werr := d.writes()
	if werr != nil {
		return Verdict{Err: werr}
	}
	v := Verdict{Answer: answer, Counters: d.counters, Refused: err, Accepted: k != Advance, Violation: k != Advance && b.Stamp.Token < mark.Token}
	var stored []byte // for a retry
	switch {
	case err != nil:
		s.reject(b, mark, err, true)
		next = mark
	case strict(k, b):
		if stored, werr = json.Marshal(answer); werr != nil {
			d.takeBack()
			return Verdict{Err: werr}
		}
	}
	if !r.exists {
		s.count++
	}
	if !r.exists || next != mark || stored != nil || d.lastTick != r.lastTick || d.counters != r.counters {
		s.resources.set(name(b.Resource), resource{exists: true, lastTick: d.lastTick, counters: d.counters})
	}
	s.marks.Set(b.Resource, next, stored)
	return v
}

func strict(k Kind, b api.Batch) bool { return k == Write && (b.Stamp.Seq > 0 || b.Digest != "") }

// admit applies the rule of package fence for each kind.
func admit(m fence.Mark, k Kind, b api.Batch) (next fence.Mark, retry bool, err error) {
	switch {
	case k == Advance:
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

func (s *State) reject(b api.Batch, m fence.Mark, err error, applied bool) {
	s.rejections = append(s.rejections, api.Rejection{
		Resource: b.Resource, Deployment: b.Stamp.Deployment, Group: b.Stamp.Group, Token: b.Stamp.Token, Seq: b.Stamp.Seq,
		Holder: b.Holder, Reason: api.Reason(err), CurrentToken: m.Token, Applied: applied, AtMS: s.NowMS,
	})
}

// AddJobs counts jobs that are added to a resource without a batch.
func (s *State) AddJobs(to string, n uint64) {
	r := s.resources.rows[name(to)]
	r.counters.Jobs, r.counters.JobsVersion = r.counters.Jobs+n, r.counters.JobsVersion+1
	s.resources.set(name(to), r)
}
