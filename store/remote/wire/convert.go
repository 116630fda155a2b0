package wire

import (
	"fmt"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
)

// Asked are the milliseconds of a duration that somebody asks for: rounded away
// from zero, so that what is too little or too much stays so.
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

// Given are the milliseconds of a duration that is granted: a fraction is dropped,
// so that nobody trusts longer than the engine does.
func Given(d time.Duration) int64 { return d.Milliseconds() }

// Duration of milliseconds. Those beyond what a duration holds stay out of every
// bound.
func Duration(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}

func each[A, B any](all []A, f func(A) B) []B {
	if all == nil {
		return nil
	}
	out := make([]B, len(all))
	for i, a := range all {
		out[i] = f(a)
	}
	return out
}

// SessionOf writes a session.
func SessionOf(s lease.Session) Session {
	return Session{ID: s.ID, Candidate: s.Candidate, Instance: s.Instance, Scope: s.Scope, Fenced: s.Fenced, TTL: Given(s.TTL), Deployment: s.Deployment, Opened: s.Opened}
}

// Lease reads a session.
func (s Session) Lease() lease.Session {
	return lease.Session{ID: s.ID, Candidate: s.Candidate, Instance: s.Instance, Scope: s.Scope, Fenced: s.Fenced, TTL: Duration(s.TTL), Deployment: s.Deployment, Opened: s.Opened}
}

// SessionsOf writes sessions.
func SessionsOf(all []lease.Session) []Session { return each(all, SessionOf) }

// LeaseSessions reads sessions.
func LeaseSessions(all []Session) []lease.Session { return each(all, Session.Lease) }

// BeatOf writes a beat.
func BeatOf(b lease.Beat) Beat {
	return Beat{TTL: Given(b.TTL), Requests: each(b.Requests, RequestOf), Records: RecordsOf(b.Records)}
}

// Lease reads a beat.
func (b Beat) Lease() lease.Beat {
	return lease.Beat{TTL: Duration(b.TTL), Requests: each(b.Requests, Request.Lease), Records: LeaseRecords(b.Records)}
}

// RequestOf writes a request.
func RequestOf(r lease.Request) Request {
	return Request{
		ID: r.ID, Verb: r.Verb, Group: r.Group, Token: r.Token, To: r.To, Reason: r.Reason,
		CoolDown: Asked(r.CoolDown), TTL: Asked(r.TTL),
	}
}

// Lease reads a request.
func (r Request) Lease() lease.Request {
	return lease.Request{
		ID: r.ID, Verb: r.Verb, Group: r.Group, Token: r.Token, To: r.To, Reason: r.Reason,
		CoolDown: Duration(r.CoolDown), TTL: Duration(r.TTL),
	}
}

// SeenOf writes what a caller knows of a record.
func SeenOf(r lease.Record) Seen { return Seen{Group: r.Group, Version: r.Version} }

// SeenAll writes what a caller knows of records.
func SeenAll(all []lease.Record) []Seen { return each(all, SeenOf) }

// Lease reads it.
func (s Seen) Lease() lease.Record { return lease.Record{Group: s.Group, Version: s.Version} }

// LeaseSeen reads them.
func LeaseSeen(all []Seen) []lease.Record { return each(all, Seen.Lease) }

// RecordOf writes a record.
func RecordOf(r lease.Record) Record {
	return Record{
		Group: r.Group, Version: r.Version, Token: r.Token, Holder: r.Holder, Candidate: r.Candidate,
		Terms: TermsOf(r.Terms),
	}
}

// Lease reads a record.
func (r Record) Lease() lease.Record {
	return lease.Record{
		Group: r.Group, Version: r.Version, Token: r.Token, Holder: r.Holder, Candidate: r.Candidate,
		Terms: LeaseTerms(r.Terms),
	}
}

// RecordsOf writes records.
func RecordsOf(all []lease.Record) []Record { return each(all, RecordOf) }

// LeaseRecords reads records.
func LeaseRecords(all []Record) []lease.Record { return each(all, Record.Lease) }

// TermsOf writes terms.
func TermsOf(all []lease.Term) []Term { return each(all, func(t lease.Term) Term { return Term(t) }) }

// LeaseTerms reads terms.
func LeaseTerms(all []Term) []lease.Term {
	return each(all, func(t Term) lease.Term { return lease.Term(t) })
}

// ViewOf writes a view.
func ViewOf(v lease.View) View { return View{Record: RecordOf(v.Record), State: v.State.String()} }

// Lease reads a view. A state that it does not know is an error, never a vacancy.
func (v View) Lease() (lease.View, error) {
	out := lease.View{Record: v.Record.Lease()}
	switch v.State {
	case tenure.Led.String():
		out.State = tenure.Led
	case tenure.Vacant.String():
		out.State = tenure.Vacant
	default:
		return lease.View{}, fmt.Errorf("group %q is said to be %.20q, not led or vacant", v.Group, v.State)
	}
	return out, nil
}

// ViewsOf writes views.
func ViewsOf(all []lease.View) []View { return each(all, ViewOf) }

// LeaseViews reads views.
func LeaseViews(all []View) ([]lease.View, error) {
	var out []lease.View
	for _, v := range all {
		read, err := v.Lease()
		if err != nil {
			return nil, err
		}
		out = append(out, read)
	}
	return out, nil
}

// WelcomeOf writes what the engine can do: the range of TTLs must not become wider.
func WelcomeOf(c lease.Caps, deployment string) Welcome {
	return Welcome{
		Deployment: deployment, MinTTL: Asked(c.MinTTL), MaxTTL: Given(c.MaxTTL), Batch: c.Batch,
		Observed: c.Observed, Lateness: Asked(c.Lateness), Loses: c.Loses,
	}
}

// Caps reads it.
func (w Welcome) Caps() lease.Caps {
	return lease.Caps{
		MinTTL: Duration(w.MinTTL), MaxTTL: Duration(w.MaxTTL), Batch: w.Batch,
		Observed: w.Observed, Lateness: Duration(w.Lateness), Loses: w.Loses,
	}
}

// LineOf writes an update.
func LineOf(u lease.Update) Line {
	switch u.Kind {
	case lease.GroupChanged:
		v := ViewOf(u.View)
		return Line{View: &v}
	case lease.SessionBegan:
		s := SessionOf(u.Session)
		return Line{Began: &s}
	case lease.SessionEnded:
		s := SessionOf(u.Session)
		return Line{Ended: &s, Reason: u.Reason}
	default:
		return Line{Complete: true}
	}
}

// Lease reads an update. A line that is none, such as a sign of life, has no kind.
func (l Line) Lease() (lease.Update, error) {
	switch {
	case l.View != nil:
		v, err := l.View.Lease()
		return lease.Update{Kind: lease.GroupChanged, View: v}, err
	case l.Began != nil:
		return lease.Update{Kind: lease.SessionBegan, Session: l.Began.Lease()}, nil
	case l.Ended != nil:
		return lease.Update{Kind: lease.SessionEnded, Session: l.Ended.Lease(), Reason: l.Reason}, nil
	case l.Complete:
		return lease.Update{Kind: lease.Synced}, nil
	}
	return lease.Update{}, nil
}

// AttributesOf writes attributes.
func AttributesOf(a lease.Attributes) AttributesBody { return AttributesBody(a) }

// Lease reads attributes.
func (a AttributesBody) Lease() lease.Attributes { return lease.Attributes(a) }
