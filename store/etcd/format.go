package etcd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// Format is the version of what is stored. Larger ones are refused, so that an old
// program does not spoil what a new one has written; what has none is of version 1. It
// grows only when an older program would read something wrongly: a field that may be
// ignored, or lost when an older program writes the value again, is added without.
const Format = 1

const format = Format

func (s *Store) key(parts ...string) string {
	return s.cfg.Prefix + "/" + strings.Join(parts, "/")
}

func (s *Store) recordKey(group string) string { return s.key("election", group) }

func (s *Store) sessionKey(id lease.SessionID) string { return s.key("electors", string(id)) }

func (s *Store) endedKey(id lease.SessionID) string { return s.sessionKey(id) + "/ended" }

func (s *Store) attemptKey(digest string) string { return s.key("attempt", digest) }

func (s *Store) grantedKey(group string) string { return s.key("granted", group) }

// everything is the range of records and sessions, in this order.
func (s *Store) everything() (from, to string) {
	return s.key("election/"), clientv3.GetPrefixRangeEnd(s.key("electors/"))
}

// recordJSON is the record of a group as it is stored.
type recordJSON struct {
	Format   int               `json:"format"`
	Group    string            `json:"group"`
	NodeID   string            `json:"node_id"`
	Session  string            `json:"session"` // "": released
	Token    fence.Token       `json:"fence_token"`
	Address  string            `json:"address,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Priority int               `json:"priority,omitempty"`
	Terms    []termJSON        `json:"terms"`
}

type termJSON struct {
	Token   fence.Token `json:"token"`
	NodeID  string      `json:"node_id"`
	Session string      `json:"session"`
	Begin   time.Time   `json:"begin"`
	End     time.Time   `json:"end,omitzero"`
	Reason  string      `json:"reason,omitempty"`
}

// sessionJSON is a session as it is stored.
type sessionJSON struct {
	Format     int               `json:"format"`
	NodeID     string            `json:"node_id"`
	Instance   string            `json:"instance,omitempty"` // digest
	Address    string            `json:"address,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Priority   int               `json:"priority,omitempty"`
	Scope      []string          `json:"scope"`
	TTL        int64             `json:"ttl_ms"`
	Fenced     bool              `json:"fenced,omitempty"`
	Deployment string            `json:"deployment,omitempty"`
}

// endedJSON says why a session was closed. It has the empty scope of a session that
// stands for nothing, so that earlier programs pass over it.
type endedJSON struct {
	Format int      `json:"format"`
	Scope  []string `json:"scope"`
	Reason string   `json:"reason"`
}

// grantedJSON is the proof that a group has had a record: it is written with the first
// grant in each epoch.
type grantedJSON struct {
	Format     int    `json:"format"`
	Deployment string `json:"deployment"`
}

// attemptJSON names the session of an attempt.
type attemptJSON struct {
	Format  int    `json:"format"`
	Session string `json:"session"`
}

func encode(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic("etcd: " + err.Error()) // strings, numbers and times
	}
	return string(data)
}

func decode(kv *mvccpb.KeyValue, into any, version *int) error {
	err := json.Unmarshal(kv.Value, into)
	written := *version
	if err != nil { // a newer format may have other types: then only its number is read
		var only struct {
			Format int `json:"format"`
		}
		if json.Unmarshal(kv.Value, &only) == nil {
			written = only.Format
		}
	}
	switch {
	case written > format:
		return fmt.Errorf("etcd: key %s: %w (format %d, this program knows up to %d): upgrade this program, or run it against another prefix", kv.Key, lease.ErrNewer, written, format)
	case err != nil:
		return fmt.Errorf("etcd: key %s is not ours: %w", kv.Key, err)
	}
	return nil
}

func termOut(t lease.Term) termJSON {
	return termJSON{Token: t.Token, NodeID: t.Candidate, Session: string(t.Session), Begin: t.Begin, End: t.End, Reason: string(t.Reason)}
}

func termIn(t termJSON) lease.Term {
	return lease.Term{Token: t.Token, Candidate: t.NodeID, Session: lease.SessionID(t.Session), Begin: t.Begin, End: t.End, Reason: lease.Reason(t.Reason)}
}

func encodeRecord(r lease.Record) string {
	j := recordJSON{
		Format: format, Group: r.Group, NodeID: r.Candidate.ID, Session: string(r.Holder), Token: r.Token,
		Address: r.Candidate.Address, Metadata: r.Candidate.Metadata, Priority: r.Candidate.Priority,
		Terms: []termJSON{},
	}
	for _, t := range r.Terms {
		j.Terms = append(j.Terms, termOut(t))
	}
	return encode(j)
}

func decodeRecord(kv *mvccpb.KeyValue) (lease.Record, error) {
	var j recordJSON
	if err := decode(kv, &j, &j.Format); err != nil {
		return lease.Record{}, err
	}
	r := lease.Record{
		Group: j.Group, Version: uint64(kv.ModRevision), Token: j.Token, Holder: lease.SessionID(j.Session),
		Candidate: tenure.Candidate{ID: j.NodeID, Address: j.Address, Metadata: j.Metadata, Priority: j.Priority},
	}
	for _, t := range j.Terms {
		r.Terms = append(r.Terms, termIn(t))
	}
	return r, nil
}

func encodeSession(n lease.Session) string {
	return encode(sessionJSON{
		Format: format, NodeID: n.Candidate.ID, Instance: n.Instance, Address: n.Candidate.Address, Metadata: n.Candidate.Metadata,
		Priority: n.Candidate.Priority, Scope: n.Scope, TTL: n.TTL.Milliseconds(), Fenced: n.Fenced, Deployment: n.Deployment,
	})
}

// ended returns the session whose end the key records.
func (s *Store) ended(key []byte) (lease.SessionID, bool) {
	id, ok := strings.CutSuffix(string(key), "/ended")
	return lease.SessionID(strings.TrimPrefix(id, s.key("electors/"))), ok
}

// decodeSession returns at least the id: a session that cannot be read lives too. What a
// session says never changes, so one that is known is not decoded again.
func (s *Store) decodeSession(kv *mvccpb.KeyValue) (lease.Session, error) {
	id := lease.SessionID(strings.TrimPrefix(string(kv.Key), s.key("electors/")))
	if known, ok := s.sessions.get(id); ok && known.Opened == uint64(kv.CreateRevision) {
		return known, nil
	}
	var j sessionJSON
	if err := decode(kv, &j, &j.Format); err != nil {
		return lease.Session{ID: id}, err
	}
	session := lease.Session{
		ID:         id,
		Candidate:  tenure.Candidate{ID: j.NodeID, Address: j.Address, Metadata: j.Metadata, Priority: j.Priority},
		Instance:   j.Instance,
		Scope:      j.Scope,
		TTL:        time.Duration(j.TTL) * time.Millisecond,
		Fenced:     j.Fenced,
		Opened:     uint64(kv.CreateRevision),
		Deployment: cmp.Or(j.Deployment, s.name()),
	}
	s.sessions.put(session.ID, session)
	return session, nil
}

// closeTerm gives the newest term its end, if it has none.
func closeTerm(terms []lease.Term, at time.Time, why lease.Reason) []lease.Term {
	if n := len(terms); n > 0 && terms[n-1].End.IsZero() {
		terms = append([]lease.Term(nil), terms...)
		terms[n-1].End, terms[n-1].Reason = at, why
	}
	return terms
}
