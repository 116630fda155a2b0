package wire

import (
	"fmt"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Asked returns the milliseconds of a duration that a caller asks for. It rounds away from
// zero, so that a value out of bounds stays out of bounds.
func Asked(d time.Duration) int64 {
	ms := d.Milliseconds()
	switch rest := d % time.Millisecond; {
	case rest > 0:
		ms++
	case rest < 0:
		ms--
	}
	return ms
}

// Given returns the milliseconds of a duration that the engine granted. It rounds towards
// zero, so that nobody trusts a lease longer than the engine does.
func Given(d time.Duration) int64 { return d.Milliseconds() }

// Duration returns the duration of ms milliseconds. A value that no duration can hold becomes
// the longest one, which no bound allows.
func Duration(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}

// Each converts every element. A nil slice stays nil.
func Each[A, B any](all []A, f func(A) B) []B {
	if all == nil {
		return nil
	}
	out := make([]B, len(all))
	for i, a := range all {
		out[i] = f(a)
	}
	return out
}

// Welcome answers caps: what a client must know before its first call.
type Welcome struct {
	Deployment string `json:"deployment"`
	Engine     string `json:"engine,omitempty"`
	MinTTL     int64  `json:"min_ttl_ms"`
	MaxTTL     int64  `json:"max_ttl_ms"`
	Step       int64  `json:"step_ms,omitempty"`
	Batch      int    `json:"batch"`
	Observed   bool   `json:"observed,omitempty"`
	Lateness   int64  `json:"lateness_ms,omitempty"`
	Loses      string `json:"loses,omitempty"`
}

// WelcomeOf encodes the capabilities of a store. Rounding never makes the range of TTLs wider.
func WelcomeOf(c store.Caps, deployment string) Welcome {
	return Welcome{deployment, c.Engine, Asked(c.MinTTL), Given(c.MaxTTL), Asked(c.Step), c.Batch, c.Observed, Asked(c.Lateness), c.Loses}
}

// Caps decodes the capabilities of a store.
func (w Welcome) Caps() store.Caps {
	return store.Caps{
		Engine: w.Engine, MinTTL: Duration(w.MinTTL), MaxTTL: Duration(w.MaxTTL), Step: Duration(w.Step), Batch: w.Batch,
		Observed: w.Observed, Lateness: Duration(w.Lateness), Loses: w.Loses,
	}
}

// OpenCall opens a session.
type OpenCall struct {
	Candidate tenure.Candidate `json:"candidate"`
	TTL       int64            `json:"ttl_ms"`
	Scope     []string         `json:"scope"`
	Instance  string           `json:"instance,omitempty"`
	Attempt   string           `json:"attempt,omitempty"`
	Fenced    bool             `json:"fenced,omitempty"`
	Successor bool             `json:"successor,omitempty"`
}

// Options returns the options of the session.
func (c OpenCall) Options() store.OpenOptions {
	return store.OpenOptions{Scope: c.Scope, Instance: c.Instance, Attempt: c.Attempt, Fenced: c.Fenced, Successor: c.Successor}
}

// Session is a store.Session.
type Session struct {
	store.Session
	TTL int64 `json:"ttl_ms"`
}

// SessionOf encodes a session.
func SessionOf(s store.Session) Session { return Session{s, Given(s.TTL)} }

// Lease decodes a session.
func (s Session) Lease() store.Session {
	s.Session.TTL = Duration(s.TTL)
	return s.Session
}

// SessionCall names a session.
type SessionCall struct {
	Session store.SessionID `json:"session"`
}

// KeepAliveCall renews a session and reads the records of the groups.
type KeepAliveCall struct {
	Session store.SessionID `json:"session"`
	Groups  []string        `json:"groups,omitempty"`
}

// Beat is a store.Beat.
type Beat struct {
	TTL      int64          `json:"ttl_ms"`
	Requests []Request      `json:"requests,omitempty"`
	Records  []store.Record `json:"records,omitempty"`
}

// BeatOf encodes a beat.
func BeatOf(b store.Beat) Beat { return Beat{Given(b.TTL), Each(b.Requests, RequestOf), b.Records} }

// Lease decodes a beat.
func (b Beat) Lease() store.Beat {
	return store.Beat{TTL: Duration(b.TTL), Requests: Each(b.Requests, Request.Lease), Records: b.Records}
}

// CloseCall closes a session. With Seen it does so only if none of the records has changed.
type CloseCall struct {
	Session store.SessionID `json:"session"`
	Reason  store.Reason    `json:"reason,omitempty"`
	Seen    []Seen          `json:"seen,omitempty"`
}

// Seen names a record and the version that the caller has seen.
type Seen struct {
	Group   string `json:"group"`
	Version uint64 `json:"version"`
}

// SeenOf encodes what a caller has seen of a record.
func SeenOf(r store.Record) Seen { return Seen{Group: r.Group, Version: r.Version} }

// Lease decodes it.
func (s Seen) Lease() store.Record { return store.Record{Group: s.Group, Version: s.Version} }

// AcquireCall asks for the records.
type AcquireCall struct {
	Session store.SessionID `json:"session"`
	Seen    []Seen          `json:"seen"`
}

// ReleaseCall gives records up.
type ReleaseCall struct {
	Session store.SessionID `json:"session"`
	Held    []Seen          `json:"held"`
	To      store.SessionID `json:"to,omitempty"`
	Reason  store.Reason    `json:"reason,omitempty"`
}

// RecordsAnswer has the records that were granted or released.
type RecordsAnswer struct {
	Records []store.Record `json:"records"`
}

// View is a store.View. State is led or vacant.
type View struct {
	store.Record
	State string `json:"state"`
}

// ViewOf encodes a view.
func ViewOf(v store.View) View { return View{v.Record, v.State.String()} }

// Lease decodes a view. An unknown state is an error, never a vacancy.
func (v View) Lease() (store.View, error) {
	for _, s := range []tenure.State{tenure.Led, tenure.Vacant} {
		if v.State == s.String() {
			return store.View{Record: v.Record, State: s}, nil
		}
	}
	return store.View{}, fmt.Errorf("the state of group %q is %.20q; want led or vacant", v.Group, v.State)
}

// LeaseViews decodes views.
func LeaseViews(all []View) (out []store.View, err error) {
	for _, v := range all {
		read, err := v.Lease()
		if err != nil {
			return nil, err
		}
		out = append(out, read)
	}
	return out, nil
}

// AskCall leaves a request for the owner of a session.
type AskCall struct {
	Session store.SessionID `json:"session"`
	Request Request         `json:"request"`
}

// Request is a store.Request.
type Request struct {
	store.Request
	CoolDown int64 `json:"cool_down_ms,omitempty"`
	TTL      int64 `json:"ttl_ms"`
}

// RequestOf encodes a request.
func RequestOf(r store.Request) Request { return Request{r, Asked(r.CoolDown), Asked(r.TTL)} }

// Lease decodes a request.
func (r Request) Lease() store.Request {
	r.Request.CoolDown, r.Request.TTL = Duration(r.CoolDown), Duration(r.TTL)
	return r.Request
}

// AnswerCall answers a request.
type AnswerCall struct {
	Session store.SessionID `json:"session"`
	Request string          `json:"request"`
	Outcome store.Outcome   `json:"outcome"`
	Detail  string          `json:"detail,omitempty"`
}

// AnsweredCall asks for the answer. The answer is a store.Answer; without an outcome the
// request is still waiting.
type AnsweredCall struct {
	Session store.SessionID `json:"session"`
	Request string          `json:"request"`
}

// ReadCall names the group.
type ReadCall struct {
	Group string `json:"group"`
}

// WatchCall starts a stream of Lines, with at least one line per heartbeat.
type WatchCall struct {
	Scope     []string `json:"scope"`
	Heartbeat int64    `json:"heartbeat_ms,omitempty"`
}

// Line is one line of a watch: a view, a session that began or ended, the end of the
// snapshot, a heartbeat, or the problem that ends the stream.
type Line struct {
	View      *View        `json:"view,omitempty"`
	Began     *Session     `json:"session_began,omitempty"`
	Ended     *Session     `json:"session_ended,omitempty"`
	Reason    store.Reason `json:"reason,omitempty"` // of the end
	Complete  bool         `json:"complete,omitempty"`
	Heartbeat bool         `json:"heartbeat,omitempty"`
	Problem   *Problem     `json:"problem,omitempty"`
}

// LineOf encodes an update.
func LineOf(u store.Update) Line {
	s := SessionOf(u.Session)
	switch u.Kind {
	case store.GroupChanged:
		v := ViewOf(u.View)
		return Line{View: &v}
	case store.SessionBegan:
		return Line{Began: &s}
	case store.SessionEnded:
		return Line{Ended: &s, Reason: u.Reason}
	default:
		return Line{Complete: true}
	}
}

// Lease decodes an update. A heartbeat has no kind.
func (l Line) Lease() (store.Update, error) {
	switch {
	case l.View != nil:
		v, err := l.View.Lease()
		return store.Update{Kind: store.GroupChanged, View: v}, err
	case l.Began != nil:
		return store.Update{Kind: store.SessionBegan, Session: l.Began.Lease()}, nil
	case l.Ended != nil:
		return store.Update{Kind: store.SessionEnded, Session: l.Ended.Lease(), Reason: l.Reason}, nil
	case l.Complete:
		return store.Update{Kind: store.Synced}, nil
	}
	return store.Update{}, nil
}

// Page is a store.Page.
type Page struct {
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// ListCall asks for a page of groups or sessions.
type ListCall struct {
	Scope []string `json:"scope"`
	Page
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
	Page
}

// HistoryAnswer is a page.
type HistoryAnswer struct {
	Terms []store.Term `json:"terms"`
}

// EpochCall raises the epoch. The answer is a store.Meta.
type EpochCall struct {
	To uint64 `json:"to"`
}

// SuspectCall reports that the engine lost data.
type SuspectCall struct {
	Group string      `json:"group"`
	Seen  fence.Token `json:"seen"`
}

// AttributesCall names what the attributes belong to.
type AttributesCall struct {
	Name string `json:"name"`
}

// ListAttributesCall asks for a page of attributes.
type ListAttributesCall struct {
	Prefix string `json:"prefix"`
	Page
}

// AttributesAnswer is a page.
type AttributesAnswer struct {
	Attributes []store.Attributes `json:"attributes"`
}

// Nothing is the body of a call without arguments, and of an answer without a result.
type Nothing struct{}
