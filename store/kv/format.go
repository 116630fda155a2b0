package kv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Format is the version of what is stored. A program refuses what a larger one wrote. It
// grows only when an older program would read something wrongly; a field that an older
// program may ignore is added without.
const Format = 2

// The keys. Session ids, groups and digests have no slash.
const (
	metaKey      = "meta"
	rulesKey     = "rules"      // its version grows with each write of a rule
	recordAt     = "record/"    // record/{group}
	sessionAt    = "session/"   // session/{id}: what a session said when it was opened
	beatAt       = "beat/"      // beat/{id}: exists while the session lives, see beatJSON
	attemptAt    = "attempt/"   // attempt/{digest}: the session of an attempt
	requestsAt   = "requests/"  // requests/{id}: what was asked of a session
	historyAt    = "history/"   // history/{group}/{slot}: terms that left the record
	attributesAt = "attribute/" // attribute/{name}
	grantAt      = "grant/"     // grant/{group}: the group was granted in this epoch, so it has a record
)

func recordKey(group string) string         { return recordAt + group }
func sessionKey(id store.SessionID) string  { return sessionAt + string(id) }
func beatKey(id store.SessionID) string     { return beatAt + string(id) }
func grantKey(group string) string          { return grantAt + group }
func requestsKey(id store.SessionID) string { return requestsAt + string(id) }
func historyKey(group string, n uint64) string {
	return fmt.Sprintf("%s%s/%04x", historyAt, group, n%historySlots)
}

// historySlots bounds the terms of a group that are kept beside its record.
const historySlots = 4 * store.HistoryKept

type metaJSON struct {
	Format      int    `json:"format"`
	Deployment  string `json:"deployment"`
	Epoch       uint64 `json:"epoch"`
	Incarnation string `json:"incarnation,omitempty"`
	Rewound     bool   `json:"rewound,omitempty"`
	Why         string `json:"why,omitempty"`
}

type recordJSON struct {
	Format     int               `json:"format"`
	Deployment string            `json:"deployment"`
	NodeID     string            `json:"node_id"`
	Session    string            `json:"session"` // "": released
	Token      fence.Token       `json:"token"`
	Address    string            `json:"address,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Priority   int               `json:"priority,omitempty"`
	Count      uint64            `json:"count"` // terms so far
	Terms      []termJSON        `json:"terms"`
	// Where a transaction has one key: see prepared.
	Version *uint64       `json:"version,omitempty"`
	Next    *preparedJSON `json:"next,omitempty"`
}

type preparedJSON struct {
	If     []Cond     `json:"if"`
	Record recordJSON `json:"record"`
}

// beatJSON is the value of a beat. Where a transaction has one key, the beat of a session
// that has ended stays: a late copy of the call that opened it must find the key in its way.
type beatJSON struct {
	Closing bool         `json:"closing,omitempty"` // see closeIfUnchanged
	Ended   store.Reason `json:"ended,omitempty"`   // why the session ended
}

// termJSON is a store.Term.
type termJSON struct {
	Token     fence.Token     `json:"token"`
	Candidate string          `json:"node_id"`
	Session   store.SessionID `json:"session"`
	Begin     time.Time       `json:"begin"`
	End       time.Time       `json:"end,omitzero"`
	Reason    store.Reason    `json:"reason,omitempty"`
}

type sessionJSON struct {
	Format     int               `json:"format"`
	Deployment string            `json:"deployment"`
	NodeID     string            `json:"node_id"`
	Address    string            `json:"address,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Priority   int               `json:"priority,omitempty"`
	Scope      []string          `json:"scope"`
	TTL        int64             `json:"ttl_ms"`
	Instance   string            `json:"instance,omitempty"`
	Attempt    string            `json:"attempt,omitempty"`
	Fenced     bool              `json:"fenced,omitempty"`
	Successor  bool              `json:"successor,omitempty"`
	Ended      string            `json:"ended,omitempty"` // why, when it has
}

type grantJSON struct {
	Format     int    `json:"format"`
	Deployment string `json:"deployment"`
	Epoch      uint64 `json:"epoch"`
}

type requestJSON struct {
	ID       string      `json:"id"`
	Verb     string      `json:"verb"`
	Group    string      `json:"group"`
	Token    fence.Token `json:"token,omitempty"`
	To       string      `json:"to,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	CoolDown int64       `json:"cool_down_ms,omitempty"`
	TTL      int64       `json:"ttl_ms"`
	Outcome  string      `json:"outcome,omitempty"`
	Detail   string      `json:"detail,omitempty"`
}

type requestsJSON struct {
	Format   int           `json:"format"`
	Requests []requestJSON `json:"requests"`
}

type attributesJSON struct {
	Format int               `json:"format"`
	Values map[string]string `json:"values"`
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic("kv: " + err.Error()) // strings, numbers and times
	}
	return data
}

// ours is how what this program writes begins.
var ours = fmt.Appendf(nil, `{"format":%d,`, Format)

// decode reads an item. Another format may have other types, so its number is read first.
func decode(i Item, into any) error {
	var head struct {
		Format int `json:"format"`
	}
	var err error
	if !bytes.HasPrefix(i.Value, ours) {
		err = json.Unmarshal(i.Value, &head)
	}
	if err == nil && head.Format > Format {
		return fmt.Errorf("kv: key %s: %w (format %d, this program reads up to %d); upgrade this program or use another prefix", i.Key, store.ErrNewer, head.Format, Format)
	}
	if err == nil {
		err = json.Unmarshal(i.Value, into)
	}
	if err != nil {
		return fmt.Errorf("kv: key %s does not hold what this program writes: %w", i.Key, err)
	}
	return nil
}

// record is a store.Record and the number of terms that it has had.
type record struct {
	store.Record
	count  uint64
	stored uint64    // version of its key, which is not Version if a grant was prepared since
	next   *prepared // nil: no grant is prepared
	// read: it was read or written in this epoch, so it must be there. What only a watch
	// has told may be from before.
	read bool
}

// prepared is a grant in a store with one key per transaction. It is written into the record
// first, and the record stays what it was, its Version included. If the conditions hold
// afterwards, no change that they exclude came before the grant, and the next write makes it:
// see settle.
type prepared struct {
	under []Cond
	to    record
}

func decodeRecord(i Item) (record, error) {
	group := strings.TrimPrefix(i.Key, recordAt)
	if i.Version == 0 {
		return record{Record: store.Record{Group: group}}, nil
	}
	var j recordJSON
	if err := decode(i, &j); err != nil {
		return record{stored: i.Version, Record: store.Record{Group: group, Version: i.Version}}, err
	}
	r := j.record(group)
	r.stored, r.Version = i.Version, i.Version
	if j.Version != nil {
		r.Version = *j.Version
	}
	if j.Next != nil {
		r.next = &prepared{j.Next.If, j.Next.Record.record(group)}
	}
	return r, nil
}

func (j *recordJSON) record(group string) record {
	r := record{count: j.Count, Record: store.Record{
		Group: group, Token: j.Token, Holder: store.SessionID(j.Session),
		Candidate: tenure.Candidate{ID: j.NodeID, Address: j.Address, Metadata: j.Metadata, Priority: j.Priority},
	}}
	for _, t := range j.Terms {
		r.Terms = append(r.Terms, store.Term(t))
	}
	return r
}

func (s *Store) encodeRecord(r record) []byte { return encode(s.recordJSON(r)) }

// encodeUnchanged encodes a record with another prepared grant, or with none.
func (s *Store) encodeUnchanged(r record, next *prepared) []byte {
	j := s.recordJSON(r)
	j.Version = &r.Version
	if next != nil {
		j.Next = &preparedJSON{next.under, s.recordJSON(next.to)}
	}
	return encode(j)
}

func (s *Store) recordJSON(r record) recordJSON {
	j := recordJSON{
		Format: Format, Deployment: s.deployment(), NodeID: r.Candidate.ID, Session: string(r.Holder), Token: r.Token,
		Address: r.Candidate.Address, Metadata: r.Candidate.Metadata, Priority: r.Candidate.Priority, Count: r.count,
	}
	for _, t := range r.Terms {
		j.Terms = append(j.Terms, termJSON(t))
	}
	return j
}

// described is a session as it was opened, with what only the store needs.
type described struct {
	store.Session
	attempt string       // digest
	ended   store.Reason // "": it may live
}

func decodeSession(i Item) (described, error) {
	id := store.SessionID(strings.TrimPrefix(i.Key, sessionAt))
	var j sessionJSON
	if err := decode(i, &j); err != nil {
		return described{Session: store.Session{ID: id}}, err
	}
	return described{attempt: j.Attempt, ended: store.Reason(j.Ended), Session: store.Session{
		ID:        id,
		Candidate: tenure.Candidate{ID: j.NodeID, Address: j.Address, Metadata: j.Metadata, Priority: j.Priority},
		Instance:  j.Instance, Scope: j.Scope, TTL: time.Duration(j.TTL) * time.Millisecond, Fenced: j.Fenced, Successor: j.Successor,
		Deployment: j.Deployment, Opened: i.Created,
	}}, nil
}

func encodeSession(d described) []byte {
	c := d.Candidate
	return encode(sessionJSON{
		Format: Format, Deployment: d.Deployment, NodeID: c.ID, Address: c.Address, Metadata: c.Metadata, Priority: c.Priority,
		Scope: d.Scope, TTL: d.TTL.Milliseconds(), Instance: d.Instance, Attempt: d.attempt, Fenced: d.Fenced, Successor: d.Successor, Ended: string(d.ended),
	})
}

func requestOf(r store.Request) requestJSON {
	return requestJSON{
		ID: r.ID, Verb: string(r.Verb), Group: r.Group, Token: r.Token, To: r.To, Reason: r.Reason,
		CoolDown: r.CoolDown.Milliseconds(), TTL: r.TTL.Milliseconds(),
	}
}

func (j requestJSON) request() store.Request {
	return store.Request{
		ID: j.ID, Verb: store.Verb(j.Verb), Group: j.Group, Token: j.Token, To: j.To, Reason: j.Reason,
		CoolDown: time.Duration(j.CoolDown) * time.Millisecond, TTL: time.Duration(j.TTL) * time.Millisecond,
	}
}

// closeTerm writes down the end of the newest term, if it has none.
func closeTerm(terms []store.Term, at time.Time, why store.Reason) []store.Term {
	n := len(terms)
	if n == 0 || !terms[n-1].End.IsZero() {
		return terms
	}
	terms = append([]store.Term(nil), terms...)
	terms[n-1].End, terms[n-1].Reason = at, why
	return terms
}
