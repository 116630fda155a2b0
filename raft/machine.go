package raft

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
)

// kind is what an entry of the log does.
type kind string

const (
	begin kind = "begin" // a term begins: the token is raised
	end   kind = "end"   // a term is given up, if it is still the newest
	beat  kind = "beat"  // nothing: its commit proves that commits work
	raise kind = "raise" // the epoch is raised

	suspect kind = "suspect" // a sink has seen a token that contradicts the newest term
)

// entry is what is committed.
type entry struct {
	Kind kind   `json:"kind"`
	By   string `json:"by"`             // the node that proposed it,
	Life string `json:"life"`           // which start of that node,
	Nth  uint64 `json:"nth"`            // and the number of the entry since that start
	At   int64  `json:"at_ms,omitzero"` // wall clock of the proposer, for people

	Candidate  tenure.Candidate `json:"candidate,omitzero"`  // begin
	Deployment string           `json:"deployment,omitzero"` // begin: if there is none yet
	Token      fence.Token      `json:"token,omitzero"`      // end: of the term; suspect: that the sink has seen
	Reason     string           `json:"reason,omitzero"`     // end: why
	Epoch      uint64           `json:"epoch,omitzero"`      // raise: to what
}

// record is the state that all nodes agree on.
type record struct {
	Deployment string      `json:"deployment"`
	Epoch      uint64      `json:"epoch"`
	Token      fence.Token `json:"token"`         // of the newest term
	Terms      []past      `json:"terms"`         // the newest last
	Lost       bool        `json:"lost,omitzero"` // data was lost: no term begins until the epoch is raised
}

// past is a term in the record.
type past struct {
	Token     fence.Token      `json:"token"`
	Candidate tenure.Candidate `json:"candidate"` // without metadata unless it is the newest
	Life      string           `json:"life"`
	Nth       uint64           `json:"nth"`
	Begin     int64            `json:"begin_ms"`
	End       int64            `json:"end_ms,omitzero"` // 0: not recorded
	Reason    string           `json:"reason,omitzero"`
}

// maxTerms is how many terms the record keeps.
const maxTerms = 32

// newest returns the newest term, or the zero past.
func (r record) newest() past {
	if n := len(r.Terms); n > 0 {
		return r.Terms[n-1]
	}
	return past{}
}

// apply is the machine: what an entry makes of the record.
func (r record) apply(e entry) (record, error) {
	r.Terms = slices.Clone(r.Terms)
	switch e.Kind {
	case begin:
		if r.Lost {
			return r, tenure.ErrDataLost
		}
		token, err := r.Token.Next(r.Epoch)
		if err != nil {
			return r, err
		}
		r.Token = token
		if r.Deployment == "" {
			r.Deployment = e.Deployment
		}
		if n := len(r.Terms); n > 0 {
			last := &r.Terms[n-1]
			last.Candidate.Metadata = nil
			if last.End == 0 {
				last.End, last.Reason = e.At, reasonExpired
			}
		}
		r.Terms = append(r.Terms, past{Token: token, Candidate: e.Candidate, Life: e.Life, Nth: e.Nth, Begin: e.At})
		r.Terms = r.Terms[max(0, len(r.Terms)-maxTerms):]
	case end:
		if n := len(r.Terms); n > 0 && e.Token == r.Token && r.Terms[n-1].End == 0 {
			r.Terms[n-1].End, r.Terms[n-1].Reason = e.At, e.Reason
		}
	case beat:
	case raise:
		if e.Epoch > fence.MaxEpoch {
			return r, fmt.Errorf("epoch %d: at most %d", e.Epoch, fence.MaxEpoch)
		}
		if e.Epoch <= r.Epoch {
			return r, fmt.Errorf("epoch %d: the epoch is %d already, and it only rises", e.Epoch, r.Epoch)
		}
		r.Epoch, r.Lost = e.Epoch, false
	case suspect:
		// A report from before the epoch was raised, or before a later term, is late.
		r.Lost = r.Lost || e.Token >= r.Token && e.Token.Epoch() >= r.Epoch
	default:
		// A newer version proposed it. If this node skipped it, its record would silently
		// differ from that of the others.
		panic(fmt.Sprintf("raft: entry of kind %q: this version is too old for its cluster", e.Kind))
	}
	return r, nil
}

// The reasons for the end of a term that observers get.
const (
	reasonExpired     = "expired"
	reasonLost        = "lost"
	reasonResigned    = "resigned"
	reasonTransferred = "transferred"
)

func reason(cause error) string {
	switch {
	case errors.Is(cause, tenure.ErrTransferred):
		return reasonTransferred
	case errors.Is(cause, tenure.ErrExpired):
		return reasonExpired
	case errors.Is(cause, tenure.ErrLost):
		return reasonLost
	default:
		return reasonResigned
	}
}

// applied is the result of an entry of this node.
type applied struct {
	record record
	term   uint64 // the Raft term it was proposed in
	err    error
}

// machine keeps the record for hashicorp/raft.
//
// propose waits for its entry here and not for the library's future, which may never
// complete if the node is shut down.
type machine struct {
	life string // a random text, new at each start of this node

	mu      sync.Mutex
	record  record
	waiting map[uint64]chan applied
	nth     uint64
	changed chan struct{} // closed at the next change of the record
}

var _ hraft.FSM = (*machine)(nil)

func newMachine(life string) *machine {
	return &machine{life: life, waiting: map[uint64]chan applied{}, changed: make(chan struct{})}
}

// expect returns a number for an entry and a channel for its result. The caller must call
// forget.
func (m *machine) expect() (nth uint64, result <-chan applied) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nth++
	c := make(chan applied, 1)
	m.waiting[m.nth] = c
	return m.nth, c
}

func (m *machine) forget(nth uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waiting, nth)
}

// state returns the record as far as this node has applied it, and changed.
func (m *machine) state() (record, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record, m.changed
}

func (m *machine) tell() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Apply implements hraft.FSM.
func (m *machine) Apply(log *hraft.Log) any {
	var e entry
	if err := json.Unmarshal(log.Data, &e); err != nil {
		panic(fmt.Sprintf("raft: entry %d is unreadable; if this node skipped it, its record would differ from that of the others: %v", log.Index, err))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	next, err := m.record.apply(e)
	if err == nil {
		m.record = next
	}
	if c := m.waiting[e.Nth]; c != nil && e.Life == m.life {
		delete(m.waiting, e.Nth)
		c <- applied{m.record, log.Term, err}
	}
	if e.Kind != beat {
		m.tell()
	}
	return nil
}

// Snapshot implements hraft.FSM.
func (m *machine) Snapshot() (hraft.FSMSnapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return snapshot(m.record), nil
}

// maxSnapshot bounds what is read back: a record is far smaller.
const maxSnapshot = 1 << 20

// Restore implements hraft.FSM.
func (m *machine) Restore(r io.ReadCloser) error {
	defer func() { _ = r.Close() }()
	var rec record
	if err := json.NewDecoder(io.LimitReader(r, maxSnapshot)).Decode(&rec); err != nil {
		return fmt.Errorf("raft: snapshot is unreadable: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record = rec
	m.tell()
	return nil
}

// snapshot is a record to be kept. Records are never changed in place.
type snapshot record

func (s snapshot) Persist(sink hraft.SnapshotSink) error {
	if err := json.NewEncoder(sink).Encode(s); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (snapshot) Release() {}

// leader turns a record into what observers get: led says whether its newest
// term is held.
func (r record) leader(group string, led bool) tenure.Leader {
	t := r.newest()
	l := tenure.Leader{Group: group, State: tenure.Vacant, Candidate: t.Candidate, Token: r.Token}
	if t.Begin != 0 {
		l.Since = time.UnixMilli(t.Begin)
	}
	switch {
	case led:
		l.State = tenure.Led
	case t.Reason != "":
		l.Reason = t.Reason
	case t.Token != 0:
		l.Reason = reasonExpired
	}
	return l
}

// since lists what happened after an observer saw the group in this state with this token:
// each term that began and each that ended, if the record still has it.
func (r record) since(group string, led bool, token fence.Token, state tenure.State) (changes []tenure.Leader) {
	for i, t := range r.Terms {
		newest := i == len(r.Terms)-1
		upto := record{Token: t.Token, Terms: r.Terms[:i+1]}
		if t.Token > token {
			began := upto.leader(group, true)
			changes = append(changes, began)
		}
		over := !newest || !led
		if over && (t.Token > token || t.Token == token && state != tenure.Vacant) {
			changes = append(changes, upto.leader(group, false))
		}
	}
	if len(r.Terms) == 0 && state != tenure.Vacant {
		changes = append(changes, r.leader(group, false))
	}
	return changes
}
