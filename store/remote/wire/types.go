package wire

import (
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// Welcome answers caps: what a client must know before its first call.
type Welcome struct {
	Deployment string `json:"deployment"`
	MinTTL     int64  `json:"min_ttl_ms"`
	MaxTTL     int64  `json:"max_ttl_ms"`
	Batch      int    `json:"batch"`
	Observed   bool   `json:"observed,omitempty"`
	Lateness   int64  `json:"lateness_ms,omitempty"`
	Loses      string `json:"loses,omitempty"`
}

// OpenCall opens a session.
type OpenCall struct {
	Candidate tenure.Candidate `json:"candidate"`
	TTL       int64            `json:"ttl_ms"`
	Scope     []string         `json:"scope"`
	Instance  string           `json:"instance,omitempty"`
	Attempt   string           `json:"attempt,omitempty"`
	Fenced    bool             `json:"fenced,omitempty"`
}

// Options reads the options of the session.
func (c OpenCall) Options() lease.OpenOptions {
	return lease.OpenOptions{Scope: c.Scope, Instance: c.Instance, Attempt: c.Attempt, Fenced: c.Fenced}
}

// Session is a lease.Session.
type Session struct {
	ID         lease.SessionID  `json:"session"`
	Candidate  tenure.Candidate `json:"candidate"`
	Scope      []string         `json:"scope"`
	Instance   string           `json:"instance,omitempty"`
	Fenced     bool             `json:"fenced,omitempty"`
	TTL        int64            `json:"ttl_ms"`
	Deployment string           `json:"deployment"`
	Opened     uint64           `json:"opened"`
}

// SessionCall names a session.
type SessionCall struct {
	Session lease.SessionID `json:"session"`
}

// KeepAliveCall names the session, and the groups whose records to read.
type KeepAliveCall struct {
	Session lease.SessionID `json:"session"`
	Groups  []string        `json:"groups,omitempty"`
}

// Beat is a lease.Beat.
type Beat struct {
	TTL      int64     `json:"ttl_ms"`
	Requests []Request `json:"requests,omitempty"`
	Records  []Record  `json:"records,omitempty"`
}

// CloseCall ends a session, with Seen only if none of the records has changed.
type CloseCall struct {
	Session lease.SessionID `json:"session"`
	Reason  lease.Reason    `json:"reason,omitempty"`
	Seen    []Seen          `json:"seen,omitempty"`
}

// Seen is a record as its caller knows it.
type Seen struct {
	Group   string `json:"group"`
	Version uint64 `json:"version"`
}

// AcquireCall asks for the records.
type AcquireCall struct {
	Session lease.SessionID `json:"session"`
	Seen    []Seen          `json:"seen"`
}

// RecordsAnswer are the records as they were granted or released.
type RecordsAnswer struct {
	Records []Record `json:"records"`
}

// ReleaseCall gives records up.
type ReleaseCall struct {
	Session lease.SessionID `json:"session"`
	Held    []Seen          `json:"held"`
	To      lease.SessionID `json:"to,omitempty"`
	Reason  lease.Reason    `json:"reason,omitempty"`
}

// Record is a lease.Record.
type Record struct {
	Group     string           `json:"group"`
	Version   uint64           `json:"version"`
	Token     fence.Token      `json:"token"`
	Holder    lease.SessionID  `json:"holder,omitempty"`
	Candidate tenure.Candidate `json:"candidate"`
	Terms     []Term           `json:"terms,omitempty"`
}

// Term is a lease.Term.
type Term struct {
	Token     fence.Token     `json:"token"`
	Candidate string          `json:"candidate"`
	Session   lease.SessionID `json:"session"`
	Begin     time.Time       `json:"begin"`
	End       time.Time       `json:"end,omitzero"`
	Reason    lease.Reason    `json:"reason,omitempty"`
}

// View is a lease.View. State is led or vacant.
type View struct {
	Record
	State string `json:"state"`
}

// AskCall leaves a request for the owner of a session.
type AskCall struct {
	Session lease.SessionID `json:"session"`
	Request Request         `json:"request"`
}

// Request is a lease.Request.
type Request struct {
	ID       string      `json:"id"`
	Verb     lease.Verb  `json:"verb"`
	Group    string      `json:"group"`
	Token    fence.Token `json:"token,omitempty"`
	To       string      `json:"to,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	CoolDown int64       `json:"cool_down_ms,omitempty"`
	TTL      int64       `json:"ttl_ms"`
}

// AnswerCall answers a request.
type AnswerCall struct {
	Session lease.SessionID `json:"session"`
	Request string          `json:"request"`
	Outcome lease.Outcome   `json:"outcome"`
	Detail  string          `json:"detail,omitempty"`
}

// AnsweredCall asks for the answer.
type AnsweredCall struct {
	Session lease.SessionID `json:"session"`
	Request string          `json:"request"`
}

// AnsweredAnswer is a lease.Answer; without an outcome the request waits.
type AnsweredAnswer struct {
	Outcome lease.Outcome `json:"outcome,omitempty"`
	Detail  string        `json:"detail,omitempty"`
}

// ReadCall names the group.
type ReadCall struct {
	Group string `json:"group"`
}

// WatchCall begins a stream of Lines, at least one in each heartbeat.
type WatchCall struct {
	Scope     []string `json:"scope"`
	Heartbeat int64    `json:"heartbeat_ms,omitempty"`
}

// Line is one line of a watch: a view, a session that began or ended, the end of the
// snapshot, a sign of life, or the problem that ends the stream.
type Line struct {
	View      *View        `json:"view,omitempty"`
	Began     *Session     `json:"session_began,omitempty"`
	Ended     *Session     `json:"session_ended,omitempty"`
	Reason    lease.Reason `json:"reason,omitempty"` // of the end
	Complete  bool         `json:"complete,omitempty"`
	Heartbeat bool         `json:"heartbeat,omitempty"`
	Problem   *Problem     `json:"problem,omitempty"`
}

// ListCall asks for a page of groups or sessions.
type ListCall struct {
	Scope []string `json:"scope"`
	After string   `json:"after,omitempty"`
	Limit int      `json:"limit,omitempty"`
}

// GroupsAnswer is a page.
type GroupsAnswer struct {
	Groups []View `json:"groups"`
}

// SessionsAnswer is a page.
type SessionsAnswer struct {
	Sessions []Session `json:"sessions"`
}

// HistoryCall asks for terms, newest first.
type HistoryCall struct {
	Group string `json:"group"`
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// HistoryAnswer is a page.
type HistoryAnswer struct {
	Terms []Term `json:"terms"`
}

// MetaAnswer is a lease.Meta.
type MetaAnswer struct {
	Deployment string `json:"deployment"`
	Epoch      uint64 `json:"epoch"`
	Index      uint64 `json:"index"`
	Rewound    bool   `json:"rewound"`
	Why        string `json:"why,omitempty"`
}

// EpochCall raises the epoch.
type EpochCall struct {
	To uint64 `json:"to"`
}

// SuspectCall reports that the engine lost data.
type SuspectCall struct {
	Group string      `json:"group"`
	Seen  fence.Token `json:"seen"`
}

// AttributesCall names what they are attached to.
type AttributesCall struct {
	Name string `json:"name"`
}

// AttributesBody is lease.Attributes, as read and as written.
type AttributesBody struct {
	Name    string            `json:"name"`
	Version uint64            `json:"version"`
	Values  map[string]string `json:"values,omitempty"`
}

// Nothing is the body of a call without arguments, and of an answer that says no
// more than that it was done.
type Nothing struct{}
