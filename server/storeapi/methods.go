package storeapi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store/remote/wire"
)

func (a *API) caps(ctx context.Context, v *visit, _ wire.Nothing) (wire.Welcome, error) {
	if err := v.may(Observe); err != nil {
		return wire.Welcome{}, err
	}
	deployment, err := a.standsFor(ctx)
	return wire.WelcomeOf(a.cfg.Store.Caps(), deployment), err
}

func (a *API) open(ctx context.Context, v *visit, in wire.OpenCall) (wire.Session, error) {
	options := in.Options()
	scope := options.Scope
	if err := errors.Join(lease.CheckCandidate(in.Candidate), options.Validate()); err != nil {
		return wire.Session{}, err
	}
	if err := v.own(in.Candidate.ID); err != nil {
		return wire.Session{}, err
	}
	if err := v.may(Campaign, scope...); err != nil {
		return wire.Session{}, err
	}
	if a.cfg.Policy != nil {
		if err := a.cfg.Policy.Opens(ctx, in.Candidate.ID, wire.Duration(in.TTL), options); err != nil {
			return wire.Session{}, before(err)
		}
	}
	s, err := a.cfg.Store.Open(ctx, in.Candidate, wire.Duration(in.TTL), options)
	if err != nil {
		return wire.Session{}, err
	}
	v.heard.Session = s.ID
	if a.cfg.Policy != nil {
		a.cfg.Policy.Opened(s)
	}
	return wire.SessionOf(s), nil
}

// session shows a session to those who may observe all that it stands for.
func (a *API) session(ctx context.Context, v *visit, in wire.SessionCall) (wire.Session, error) {
	v.heard.Session = in.Session
	s, err := a.living(ctx, in.Session)
	if err != nil {
		return wire.Session{}, err
	}
	if err := v.may(Observe, s.Scope...); err != nil {
		return wire.Session{}, err
	}
	return wire.SessionOf(s), nil
}

// keepAlive needs the right to all that the session stands for: who lost one must not keep
// what it leads by it. Groups that it does not stand for are read as by an observer.
func (a *API) keepAlive(ctx context.Context, v *visit, in wire.KeepAliveCall) (wire.Beat, error) {
	s, err := v.owned(ctx, in.Session)
	if err != nil {
		return wire.Beat{}, err
	}
	if err := v.may(Campaign, s.Scope...); err != nil {
		return wire.Beat{}, err
	}
	if other := slices.DeleteFunc(slices.Clone(in.Groups), s.Scope.Covers); len(other) > 0 {
		if err := v.may(Observe, other...); err != nil {
			return wire.Beat{}, err
		}
	}
	b, err := a.cfg.Store.KeepAlive(ctx, in.Session, in.Groups...)
	return wire.BeatOf(b), err
}

// close is the owner's, or by force that of an admin of all that the session
// stands for.
func (a *API) close(ctx context.Context, v *visit, in wire.CloseCall) (wire.Nothing, error) {
	if err := checkReason(in.Reason); err != nil {
		return wire.Nothing{}, err
	}
	v.heard.Reason = string(in.Reason)
	_, err := v.owned(ctx, in.Session)
	var denied deniedError
	switch {
	case errors.Is(err, lease.ErrSessionDead):
		return wire.Nothing{}, nil
	case errors.As(err, &denied):
		s, lost := a.living(ctx, in.Session)
		if errors.Is(lost, lease.ErrSessionDead) {
			return wire.Nothing{}, err // of another's sessions not even that is told
		}
		if lost != nil {
			return wire.Nothing{}, before(lost)
		}
		if v.may(Admin, s.Scope...) != nil {
			return wire.Nothing{}, err
		}
	case err != nil:
		return wire.Nothing{}, err
	}
	return wire.Nothing{}, a.cfg.Store.Close(ctx, in.Session, in.Reason, wire.LeaseSeen(in.Seen)...)
}

func (a *API) acquire(ctx context.Context, v *visit, in wire.AcquireCall) (wire.RecordsAnswer, error) {
	session, seen, groups, err := v.batch(ctx, in.Session, in.Seen)
	if err != nil {
		return wire.RecordsAnswer{}, err
	}
	if err := v.begins(ctx, session, groups...); err != nil {
		return wire.RecordsAnswer{}, err
	}
	granted, err := a.cfg.Store.Acquire(ctx, in.Session, seen...)
	if err != nil {
		return wire.RecordsAnswer{}, err
	}
	v.heard.Token = uint64(granted[0].Token)
	return wire.RecordsAnswer{Records: wire.RecordsOf(granted)}, nil
}

func (a *API) release(ctx context.Context, v *visit, in wire.ReleaseCall) (wire.RecordsAnswer, error) {
	if err := checkReason(in.Reason); err != nil {
		return wire.RecordsAnswer{}, err
	}
	v.heard.Reason = string(in.Reason)
	_, held, groups, err := v.batch(ctx, in.Session, in.Held)
	if err != nil {
		return wire.RecordsAnswer{}, err
	}
	if err := a.succeeds(ctx, v, in.To, groups); err != nil {
		return wire.RecordsAnswer{}, err
	}
	released, err := a.cfg.Store.Release(ctx, in.Session, in.To, in.Reason, held...)
	if err != nil {
		return wire.RecordsAnswer{}, err
	}
	v.heard.Token = uint64(released[0].Token)
	return wire.RecordsAnswer{Records: wire.RecordsOf(released)}, nil
}

// batch checks records that the owner of a session acquires or releases.
func (v *visit) batch(ctx context.Context, id lease.SessionID, seen []wire.Seen) (lease.Session, []lease.Record, []string, error) {
	records := wire.LeaseSeen(seen)
	if err := lease.CheckBatch(v.cfg.Store.Caps(), records); err != nil {
		return lease.Session{}, nil, nil, err
	}
	groups := make([]string, len(records))
	for i, r := range records {
		groups[i] = r.Group
	}
	session, err := v.owned(ctx, id)
	if err == nil {
		err = v.may(Campaign, groups...)
	}
	return session, records, groups, err
}

// succeeds checks that groups may be handed to the session, if to one at all.
func (a *API) succeeds(ctx context.Context, v *visit, to lease.SessionID, groups []string) error {
	switch {
	case to == "":
		return nil
	case !plausible(to):
		return lease.ErrSuccessor
	case a.cfg.Policy == nil:
		return nil
	}
	session, err := a.cfg.Session(ctx, to)
	if errors.Is(err, lease.ErrSessionDead) {
		return fmt.Errorf("%w: its session has ended", lease.ErrSuccessor)
	}
	if err != nil {
		return before(err)
	}
	for _, g := range groups {
		err = v.begins(ctx, session, g)
		var p *httpapi.Problem
		if errors.As(err, &p) {
			return fmt.Errorf("%w: %s", lease.ErrSuccessor, p.Detail)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// living reads a session from the engine.
func (a *API) living(ctx context.Context, id lease.SessionID) (lease.Session, error) {
	if !plausible(id) {
		return lease.Session{}, fmt.Errorf("session %.64q never was: %w", id, lease.ErrSessionDead)
	}
	return a.cfg.Store.Session(ctx, id)
}

// plausible: engines make ids of these, and nothing else gets into a key.
func plausible(id lease.SessionID) bool {
	const most = 128
	if len(id) == 0 || len(id) > most {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.', c == ':':
		default:
			return false
		}
	}
	return true
}

// checkReason keeps what is written into a group's history short and plain.
func checkReason(why lease.Reason) error {
	if why != "" && !lease.ValidName(string(why)) {
		return &lease.ArgumentError{Field: "reason", Value: string(why), Rule: "a short word, such as resigned"}
	}
	return nil
}

// ask reaches only those who stand for the group: a right to one group must not
// fill the few places of another's leader.
func (a *API) ask(ctx context.Context, v *visit, in wire.AskCall) (wire.Nothing, error) {
	r := in.Request.Lease()
	if err := r.Validate(); err != nil {
		return wire.Nothing{}, err
	}
	v.heard.Session, v.heard.Token, v.heard.Reason = in.Session, uint64(r.Token), r.Reason
	if err := v.may(StepDown, r.Group); err != nil {
		return wire.Nothing{}, err
	}
	s, err := a.living(ctx, in.Session)
	if err != nil {
		return wire.Nothing{}, before(err)
	}
	v.heard.Candidate = s.Candidate.ID
	if !s.Scope.Covers(r.Group) {
		return wire.Nothing{}, &lease.ArgumentError{Field: "request group", Value: r.Group, Rule: "the session does not stand for it"}
	}
	return wire.Nothing{}, a.cfg.Store.Ask(ctx, in.Session, r)
}

func (a *API) answer(ctx context.Context, v *visit, in wire.AnswerCall) (wire.Nothing, error) {
	out := lease.Answer{Outcome: in.Outcome, Detail: in.Detail}
	if err := errors.Join(out.Validate(), lease.CheckRequestID(in.Request)); err != nil {
		return wire.Nothing{}, err
	}
	if _, err := v.owned(ctx, in.Session); err != nil {
		return wire.Nothing{}, err
	}
	return wire.Nothing{}, a.cfg.Store.Answer(ctx, in.Session, in.Request, out)
}

func (a *API) answered(ctx context.Context, v *visit, in wire.AnsweredCall) (wire.AnsweredAnswer, error) {
	if err := v.may(StepDown); err != nil {
		return wire.AnsweredAnswer{}, err
	}
	if !plausible(in.Session) {
		return wire.AnsweredAnswer{}, lease.ErrSessionDead
	}
	out, err := a.cfg.Store.Answered(ctx, in.Session, in.Request)
	return wire.AnsweredAnswer(out), err
}

func (a *API) read(ctx context.Context, v *visit, in wire.ReadCall) (wire.View, error) {
	if err := lease.CheckGroup(in.Group); err != nil {
		return wire.View{}, err
	}
	if err := v.may(Observe, in.Group); err != nil {
		return wire.View{}, err
	}
	view, err := a.cfg.Store.Read(ctx, in.Group)
	return wire.ViewOf(view), err
}

func (a *API) groups(ctx context.Context, v *visit, in wire.ListCall) (wire.GroupsAnswer, error) {
	if err := v.list(in); err != nil {
		return wire.GroupsAnswer{}, err
	}
	views, err := a.cfg.Store.Groups(ctx, in.Scope, lease.Page{After: in.After, Limit: in.Limit})
	return wire.GroupsAnswer{Groups: wire.ViewsOf(views)}, err
}

func (a *API) sessions(ctx context.Context, v *visit, in wire.ListCall) (wire.SessionsAnswer, error) {
	if err := v.list(in); err != nil {
		return wire.SessionsAnswer{}, err
	}
	sessions, err := a.cfg.Store.Sessions(ctx, in.Scope, lease.Page{After: in.After, Limit: in.Limit})
	return wire.SessionsAnswer{Sessions: wire.SessionsOf(sessions)}, err
}

func (v *visit) list(in wire.ListCall) error {
	if err := lease.Scope(in.Scope).Validate(); err != nil {
		return err
	}
	return v.may(Observe, in.Scope...)
}

func (a *API) history(ctx context.Context, v *visit, in wire.HistoryCall) (wire.HistoryAnswer, error) {
	if err := lease.CheckGroup(in.Group); err != nil {
		return wire.HistoryAnswer{}, err
	}
	if err := v.may(Observe, in.Group); err != nil {
		return wire.HistoryAnswer{}, err
	}
	terms, err := a.cfg.Store.History(ctx, in.Group, lease.Page{After: in.After, Limit: in.Limit})
	return wire.HistoryAnswer{Terms: wire.TermsOf(terms)}, err
}

func (a *API) meta(ctx context.Context, v *visit, _ wire.Nothing) (wire.MetaAnswer, error) {
	if err := v.may(Observe); err != nil {
		return wire.MetaAnswer{}, err
	}
	m, err := a.cfg.Store.Meta(ctx)
	return wire.MetaAnswer(m), err
}

func (a *API) raiseEpoch(ctx context.Context, v *visit, in wire.EpochCall) (wire.MetaAnswer, error) {
	if err := v.may(Admin, "*"); err != nil {
		return wire.MetaAnswer{}, err
	}
	m, err := a.cfg.Store.RaiseEpoch(ctx, in.To)
	return wire.MetaAnswer(m), err
}

func (a *API) suspect(ctx context.Context, v *visit, in wire.SuspectCall) (wire.Nothing, error) {
	if err := errors.Join(lease.CheckGroup(in.Group), lease.CheckToken(in.Seen)); err != nil {
		return wire.Nothing{}, err
	}
	if err := v.may(Campaign, in.Group); err != nil {
		return wire.Nothing{}, err
	}
	if err := a.cfg.Store.Suspect(ctx, in.Group, in.Seen); err != nil || a.cfg.Suspected == nil {
		return wire.Nothing{}, err
	}
	// A late report changes nothing.
	if m, err := a.cfg.Store.Meta(ctx); err == nil && m.Rewound {
		a.cfg.Suspected(in.Group, in.Seen)
	}
	return wire.Nothing{}, nil
}
