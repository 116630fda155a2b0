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

// Format is the version of the stored values. A program refuses values of a larger format. The
// format grows only if older programs would misread the values. A field that older programs may
// ignore does not need a new format.
const Format = 2

// The keys. Session ids, groups and digests have no slash.
const (
	metaKey      = "meta"
	rulesKey     = "rules"      // its version grows with each write of a rule
	recordAt     = "record/"    // record/{group}
	sessionAt    = "session/"   // session/{id}: its description, see sessionJSON
	beatAt       = "beat/"      // beat/{id}: exists while the session is alive, see beatJSON
	attemptAt    = "attempt/"   // attempt/{digest}: the session of an attempt
	requestsAt   = "requests/"  // requests/{id}: operators' requests to a session
	historyAt    = "history/"   // history/{group}/{slot}: terms that no longer fit into the record
	attributesAt = "attribute/" // attribute/{name}
	floorAt      = "floor/"     // floor/{prefix}/{number}: see floorJSON
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

// historySlots bounds the terms of a group that are kept outside its record.
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
	// Only if a transaction has one key: see prepared.
	Version *uint64       `json:"version,omitempty"`
	Next    *preparedJSON `json:"next,omitempty"`
}

type preparedJSON struct {
	If     []Cond     `json:"if"`
	Record recordJSON `json:"record"`
}

// beatJSON is the value of a beat. If a transaction has only one key, the beat of an ended
// session is kept, so that a late copy of the call that opened the session fails.
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
	Ended      string            `json:"ended,omitempty"` // why the session ended
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

// ownFormat is the beginning of every value that this program writes.
var ownFormat = fmt.Appendf(nil, `{"format":%d,`, Format)

// decode reads an item. Another format may have other types, so its number is read first.
func decode(i Item, into any) error {
	var head struct {
		Format int `json:"format"`
	}
	var err error
	if !bytes.HasPrefix(i.Value, ownFormat) {
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

// record is a store.Record with what only this package needs.
type record struct {
	store.Record
	count  uint64    // terms so far
	stored uint64    // version of the key; larger than Version if a grant was prepared since
	next   *prepared // nil: no grant is prepared
	// read: this process read or wrote it in this epoch, so it must exist. A record that only
	// a watch delivered may be from an earlier epoch.
	read bool
}

// prepared is a grant that has not taken effect, in a store with one key per transaction. It is
// first written into the record, whose content and Version stay the same. If its conditions
// hold afterwards, the next write completes it: see settle.
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

// encodeUnchanged encodes a record in its Version, with another prepared grant or with none.
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

// described is a session as it was opened, with what only this package needs.
type described struct {
	store.Session
	attempt string       // digest
	ended   store.Reason // "": it may be alive
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

// closeTerm returns the terms with an end of the newest one, if it had none.
func closeTerm(terms []store.Term, at time.Time, why store.Reason) []store.Term {
	n := len(terms)
	if n == 0 || !terms[n-1].End.IsZero() {
		return terms
	}
	terms = append([]store.Term(nil), terms...)
	terms[n-1].End, terms[n-1].Reason = at, why
	return terms
}
