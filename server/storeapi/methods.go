package storeapi

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote/wire"
)

func (a *API) caps(ctx context.Context, v *visit, _ wire.Nothing) (wire.Welcome, error) {
	if err := v.may(auth.Observe); err != nil {
		return wire.Welcome{}, err
	}
	deployment, err := a.servedDeployment(ctx)
	return wire.WelcomeOf(a.cfg.Store.Caps(), deployment), err
}

func (a *API) open(ctx context.Context, v *visit, in wire.OpenCall) (wire.Session, error) {
	o, ttl := in.Options(), wire.Duration(in.TTL)
	if err := cmp.Or(store.CheckCandidate(in.Candidate), o.Validate(), v.own(in.Candidate.ID), v.may(auth.Campaign, o.Scope...)); err != nil {
		return wire.Session{}, err
	}
	s, err := a.cfg.Store.Open(ctx, in.Candidate, ttl, o)
	v.heard.Session = s.ID
	return wire.SessionOf(s), err
}

// session shows a session to a caller that may observe everything in its scope.
func (a *API) session(ctx context.Context, v *visit, in wire.SessionCall) (wire.Session, error) {
	s, err := v.find(ctx, in.Session, a.cfg.Store.Session)
	if err == nil {
		err = v.may(auth.Observe, s.Scope...)
	}
	if err != nil {
		return wire.Session{}, err
	}
	return wire.SessionOf(s), nil
}

// keepAlive needs the right to everything in the scope of the session: a caller that lost a
// right must not keep what it leads. Reading groups outside the scope needs the right to
// observe them.
func (a *API) keepAlive(ctx context.Context, v *visit, in wire.KeepAliveCall) (wire.Beat, error) {
	s, err := v.owned(ctx, in.Session)
	if err == nil {
		err = v.may(auth.Campaign, s.Scope...)
	}
	if other := slices.DeleteFunc(slices.Clone(in.Groups), s.Scope.Covers); err == nil && len(other) > 0 {
		err = v.may(auth.Observe, other...)
	}
	if err != nil {
		return wire.Beat{}, err
	}
	b, err := a.cfg.Store.KeepAlive(ctx, in.Session, in.Groups...)
	return wire.BeatOf(b), err
}

// close is for the owner of the session, or for an admin of everything in its scope.
func (a *API) close(ctx context.Context, v *visit, in wire.CloseCall) (none wire.Nothing, err error) {
	if err := v.reason(in.Reason); err != nil {
		return none, err
	}
	_, err = v.owned(ctx, in.Session)
	var denied deniedError
	switch {
	case errors.Is(err, store.ErrSessionDead):
		return none, nil
	case errors.As(err, &denied):
		s, lost := a.cfg.Store.Session(ctx, in.Session)
		if lost != nil && !errors.Is(lost, store.ErrSessionDead) {
			return none, before(lost)
		}
		// A caller without the right does not learn whether the session of another has ended.
		if lost != nil || v.may(auth.Admin, s.Scope...) != nil {
			return none, err
		}
	case err != nil:
		return none, err
	}
	return none, a.cfg.Store.End(ctx, in.Session, in.Reason, wire.Each(in.Seen, wire.Seen.Lease)...)
}

func (a *API) acquire(ctx context.Context, v *visit, in wire.AcquireCall) (wire.RecordsAnswer, error) {
	seen, err := v.batch(ctx, in.Session, in.Seen)
	if err != nil {
		return wire.RecordsAnswer{}, err
	}
	return v.records(a.cfg.Store.Acquire(ctx, in.Session, seen...))
}

func (a *API) release(ctx context.Context, v *visit, in wire.ReleaseCall) (wire.RecordsAnswer, error) {
	if err := v.reason(in.Reason); err != nil {
		return wire.RecordsAnswer{}, err
	}
	held, err := v.batch(ctx, in.Session, in.Held)
	if err == nil && in.To != "" && !plausible(in.To) {
		err = store.ErrSuccessor
	}
	if err != nil {
		return wire.RecordsAnswer{}, err
	}
	return v.records(a.cfg.Store.Release(ctx, in.Session, in.To, in.Reason, held...))
}

// records answers with records that were granted or released.
func (v *visit) records(all []store.Record, err error) (wire.RecordsAnswer, error) {
	if err == nil {
		v.heard.Token = uint64(all[0].Token)
	}
	return wire.RecordsAnswer{Records: all}, err
}

// batch checks records that the owner of a session acquires or releases.
func (v *visit) batch(ctx context.Context, id store.SessionID, seen []wire.Seen) ([]store.Record, error) {
	records := wire.Each(seen, wire.Seen.Lease)
	if err := store.CheckBatch(v.cfg.Store.Caps(), records); err != nil {
		return nil, err
	}
	if _, err := v.owned(ctx, id); err != nil {
		return nil, err
	}
	return records, v.may(auth.Campaign, wire.Each(records, func(r store.Record) string { return r.Group })...)
}

// plausible reports whether an engine can have made the id. Nothing else may become part of
// a key.
func plausible(id store.SessionID) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:"
	return len(id) > 0 && len(id) <= 128 && strings.Trim(string(id), letters) == ""
}

// reason checks a reason, which becomes part of the history of groups.
func (v *visit) reason(why store.Reason) error {
	if why != "" && !store.ValidName(string(why)) {
		return &store.ArgumentError{Field: "reason", Value: string(why), Rule: "a short word, such as resigned"}
	}
	v.heard.Reason = string(why)
	return nil
}

// ask reaches only sessions that may lead the group: the right to one group must not be
// enough to fill the queue of another group's leader.
func (a *API) ask(ctx context.Context, v *visit, in wire.AskCall) (none wire.Nothing, err error) {
	r := in.Request.Lease()
	if err := r.Validate(); err != nil {
		return none, err
	}
	v.heard.Session, v.heard.Token, v.heard.Reason = in.Session, uint64(r.Token), r.Reason
	if err := v.may(auth.StepDown, r.Group); err != nil {
		return none, err
	}
	s, err := v.find(ctx, in.Session, a.cfg.Store.Session)
	if err != nil {
		return none, before(err)
	}
	v.heard.Candidate = s.Candidate.ID
	if !s.Scope.Covers(r.Group) {
		return none, &store.ArgumentError{Field: "request group", Value: r.Group, Rule: "is not in the scope of the session"}
	}
	return none, a.cfg.Store.Ask(ctx, in.Session, r)
}

func (a *API) answer(ctx context.Context, v *visit, in wire.AnswerCall) (none wire.Nothing, err error) {
	out := store.Answer{Outcome: in.Outcome, Detail: in.Detail}
	if err = errors.Join(out.Validate(), store.CheckRequestID(in.Request)); err == nil {
		_, err = v.owned(ctx, in.Session)
	}
	if err != nil {
		return none, err
	}
	return none, a.cfg.Store.Answer(ctx, in.Session, in.Request, out)
}

func (a *API) answered(ctx context.Context, v *visit, in wire.AnsweredCall) (out store.Answer, err error) {
	if err := v.may(auth.StepDown); err != nil {
		return out, err
	}
	if !plausible(in.Session) {
		return out, store.ErrSessionDead
	}
	return a.cfg.Store.Answered(ctx, in.Session, in.Request)
}

func (a *API) read(ctx context.Context, v *visit, in wire.ReadCall) (wire.View, error) {
	if err := v.observe(in.Group); err != nil {
		return wire.View{}, err
	}
	view, err := a.cfg.Store.Read(ctx, in.Group)
	return wire.ViewOf(view), err
}

// observe checks the right to observe a group.
func (v *visit) observe(group string) error {
	return cmp.Or(store.CheckGroup(group), v.may(auth.Observe, group))
}

func (a *API) groups(ctx context.Context, v *visit, in wire.ListCall) (wire.GroupsAnswer, error) {
	if err := v.list(in.Scope); err != nil {
		return wire.GroupsAnswer{}, err
	}
	views, err := a.cfg.Store.Groups(ctx, in.Scope, store.Page(in.Page))
	return wire.GroupsAnswer{Groups: wire.Each(views, wire.ViewOf)}, err
}

func (a *API) sessions(ctx context.Context, v *visit, in wire.ListCall) (wire.SessionsAnswer, error) {
	if err := v.list(in.Scope); err != nil {
		return wire.SessionsAnswer{}, err
	}
	sessions, err := a.cfg.Store.Sessions(ctx, in.Scope, store.Page(in.Page))
	return wire.SessionsAnswer{Sessions: wire.Each(sessions, wire.SessionOf)}, err
}

// list checks the right to observe everything in the scope.
func (v *visit) list(scope store.Scope) error {
	return cmp.Or(scope.Validate(), v.may(auth.Observe, scope...))
}

func (a *API) history(ctx context.Context, v *visit, in wire.HistoryCall) (wire.HistoryAnswer, error) {
	if err := v.observe(in.Group); err != nil {
		return wire.HistoryAnswer{}, err
	}
	terms, err := a.cfg.Store.History(ctx, in.Group, store.Page(in.Page))
	return wire.HistoryAnswer{Terms: terms}, err
}

func (a *API) meta(ctx context.Context, v *visit, _ wire.Nothing) (store.Meta, error) {
	if err := v.may(auth.Observe); err != nil {
		return store.Meta{}, err
	}
	return a.cfg.Store.Meta(ctx)
}

func (a *API) raiseEpoch(ctx context.Context, v *visit, in wire.EpochCall) (store.Meta, error) {
	if err := v.may(auth.Admin, "*"); err != nil {
		return store.Meta{}, err
	}
	return a.cfg.Store.RaiseEpoch(ctx, in.To)
}

func (a *API) suspect(ctx context.Context, v *visit, in wire.SuspectCall) (none wire.Nothing, err error) {
	if err := cmp.Or(store.CheckGroup(in.Group), store.CheckToken(in.Seen), v.may(auth.Campaign, in.Group)); err != nil {
		return none, err
	}
	if err := a.cfg.Store.Suspect(ctx, in.Group, in.Seen); err != nil || a.cfg.Suspected == nil {
		return none, err
	}
	// A late report changes nothing.
	if m, err := a.cfg.Store.Meta(ctx); err == nil && m.Rewound {
		a.cfg.Suspected(in.Group, in.Seen)
	}
	return none, nil
}

func (a *API) attributes(ctx context.Context, v *visit, in wire.AttributesCall) (store.Attributes, error) {
	if err := cmp.Or(store.Attributes{Name: in.Name}.Validate(), v.mayRead(subjectOf(in.Name))); err != nil {
		return store.Attributes{}, err
	}
	return a.cfg.Store.Attributes(ctx, in.Name)
}

// listAttributes needs the right to observe every group with the prefix, or all groups if the
// prefix is that of neither groups nor marks of one group.
func (a *API) listAttributes(ctx context.Context, v *visit, in wire.ListAttributesCall) (wire.AttributesAnswer, error) {
	scope := "*"
	if group, ok := strings.CutPrefix(in.Prefix, "group/"); ok {
		scope = group + "*"
	} else if s := subjectOf(in.Prefix + "x"); s.mark {
		scope = s.group
	}
	if err := cmp.Or(store.Attributes{Name: in.Prefix}.Validate(), v.may(auth.Observe, scope)); err != nil {
		return wire.AttributesAnswer{}, err
	}
	all, err := a.cfg.Store.ListAttributes(ctx, in.Prefix, store.Page(in.Page))
	return wire.AttributesAnswer{Attributes: all}, err
}

func (a *API) setAttributes(ctx context.Context, v *visit, in store.Attributes) (store.Attributes, error) {
	if err := cmp.Or(in.Validate(), v.mayWrite(subjectOf(in.Name))); err != nil {
		return store.Attributes{}, err
	}
	return a.cfg.Store.SetAttributes(ctx, in)
}
