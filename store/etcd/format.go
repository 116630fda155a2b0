package etcd

import (
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
	Format   int               `json:"format"`
	NodeID   string            `json:"node_id"`
	Address  string            `json:"address,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Priority int               `json:"priority,omitempty"`
	Scope    []string          `json:"scope"`
	TTL      int64             `json:"ttl_ms"`
	Closing  string            `json:"closing,omitempty"` // why it is about to be revoked
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

// stored is a session with what only the store needs to know.
type stored struct {
	lease.Session
	closing lease.Reason
}

// decodeSession returns at least the id: a session that cannot be read lives too.
func (s *Store) decodeSession(kv *mvccpb.KeyValue) (stored, error) {
	id := strings.TrimPrefix(string(kv.Key), s.key("electors/"))
	var j sessionJSON
	if err := decode(kv, &j, &j.Format); err != nil {
		return stored{Session: lease.Session{ID: lease.SessionID(id)}}, err
	}
	session := lease.Session{
		ID:         lease.SessionID(id),
		Candidate:  tenure.Candidate{ID: j.NodeID, Address: j.Address, Metadata: j.Metadata, Priority: j.Priority},
		Scope:      j.Scope,
		TTL:        time.Duration(j.TTL) * time.Millisecond,
		Opened:     uint64(kv.CreateRevision),
		Deployment: s.deployment,
	}
	s.sessions.put(session.ID, session)
	return stored{Session: session, closing: lease.Reason(j.Closing)}, nil
}

// closeTerm gives the newest term its end, if it has none.
func closeTerm(terms []lease.Term, at time.Time, why lease.Reason) []lease.Term {
	if n := len(terms); n > 0 && terms[n-1].End.IsZero() {
		terms = append([]lease.Term(nil), terms...)
		terms[n-1].End, terms[n-1].Reason = at, why
	}
	return terms
}
