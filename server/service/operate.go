package service

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/auth/audit"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store"
)

// answerWait is how long an operator waits for the answer of the leader by default.
const answerWait = 10 * time.Second

// order is what an operator wants of the leader of a group.
type order struct {
	operator.Order
	group string
	force bool
}

func (s *Service) stepDown(w http.ResponseWriter, r *http.Request, in StepDownRequest) (any, error) {
	if r.Header.Get("If-Match") == "" {
		return nil, httpapi.Refuse(http.StatusPreconditionRequired, "term_required",
			`name the leader that is meant, with If-Match: "<term>" from GET leader: another may lead by now`)
	}
	if in.CoolDownMS < 0 || in.CoolDownMS > operator.MaxCoolDown.Milliseconds() {
		return nil, bad("bad_argument", "cool_down_ms: from 0 to %d", operator.MaxCoolDown.Milliseconds())
	}
	return s.command(w, r, operator.Order{Verb: store.StepDown, Reason: in.Reason, CoolDown: time.Duration(in.CoolDownMS) * time.Millisecond})
}

func (s *Service) transfer(w http.ResponseWriter, r *http.Request, in StepDownRequest) (any, error) {
	to := r.URL.Query().Get("to")
	if !store.ValidName(to) {
		return nil, bad("bad_argument", "to: want the node that is to lead, as ?to=")
	}
	if in.CoolDownMS != 0 {
		return nil, bad("bad_argument", "cool_down_ms: a transfer has none")
	}
	return s.command(w, r, operator.Order{Verb: store.Transfer, To: to, Reason: in.Reason})
}

// command finds the leader that the operator means, and asks it or closes its session.
func (s *Service) command(w http.ResponseWriter, r *http.Request, want operator.Order) (any, error) {
	ctx, o := r.Context(), order{Order: want, group: groupOf(r)}
	force := r.URL.Query().Get("force")
	o.force = force == "true"
	if force != "" && force != "true" && force != "false" {
		return nil, bad("bad_argument", "force: true or false")
	}
	if len(o.Reason) > operator.MaxReason {
		return nil, bad("bad_argument", "reason: at most %d bytes", operator.MaxReason)
	}
	var err error
	if o.Wait, err = s.waitOf(w, r); err != nil {
		return nil, err
	}
	if !r.URL.Query().Has("wait") {
		o.Wait = min(answerWait, s.cfg.MaxWait)
		s.extendDeadlines(w, o.Wait)
	}
	v, err := s.intendedLeader(r, o.group)
	if err != nil {
		return nil, err
	}
	var to store.Session
	if o.Verb == store.Transfer {
		if o.To == v.Candidate.ID {
			return nil, noSuccessor(o.group, o.To, "it leads already")
		}
		if to, err = s.successor(ctx, o.group, o.To); err != nil {
			return nil, err
		}
	}
	what := string(o.Verb)
	var also []string
	if o.force {
		what += " by force"
		if also, err = s.alsoEnded(ctx, o.group, v.Holder); err != nil {
			return nil, err
		}
	}
	cooled := ""
	if o.CoolDown > 0 {
		// The cool-down is written before the leader is asked, so that it cannot lead again first.
		if cooled, err = s.operations().Cool(ctx, o.group, v.Candidate.ID, o.CoolDown); err != nil {
			return nil, err
		}
	}
	var out SteppedDown
	began := time.Now()
	if o.force {
		out, err = s.force(ctx, o, v, to)
		out.AlsoEnded = also
	} else {
		out, err = s.ask(ctx, o, v)
	}
	if cooled != "" && (err != nil && store.Definite(err) || err == nil && out.Outcome == string(store.Refused)) {
		// It still leads, so remove the cool-down.
		if err := s.operations().Warm(ctx, o.group, v.Candidate.ID, cooled); err != nil {
			s.cfg.Log.Warn("could not remove the cool-down of a step-down that was refused", "group", o.group, "node", v.Candidate.ID, "err", err)
		}
	}
	if err == nil && out.Outcome == string(operator.Waiting) {
		s.gate.Audit(ctx, audit.Entry{What: what, Group: o.group, Token: v.Token, Result: audit.Pending, Reason: o.Reason})
	} else {
		s.audit(ctx, what, o.group, v.Token, err, o.Reason)
	}
	if err != nil {
		return nil, err
	}
	s.spans.Handover(ctx, began, o.group, v.Token, o.To, out.Outcome)
	if out.Outcome == string(operator.Waiting) {
		return withStatus{http.StatusAccepted, out}, nil
	}
	return out, nil
}

// intendedLeader reads the group and checks that its leader is the one that the operator means.
func (s *Service) intendedLeader(r *http.Request, group string) (store.View, error) {
	if err := store.CheckGroup(group); err != nil {
		return store.View{}, err
	}
	want, err := ifMatch(r)
	if err != nil {
		return store.View{}, err
	}
	v, err := s.engine.Read(r.Context(), group)
	switch {
	case err != nil:
		return store.View{}, err
	case want > 0 && v.Token != fence.Token(want):
		return v, led(httpapi.Refuse(http.StatusPreconditionFailed, "stale_term",
			"the leader that is meant (term %d) is not the newest: %s; read it again before you act", want, whoLeads(v)), v, 0)
	case v.State != tenure.Led:
		return v, led(httpapi.Refuse(http.StatusConflict, "no_leader", "%s: there is nobody to ask", whoLeads(v)), v, 0)
	}
	return v, nil
}

// ask stores a request in the leader's session and waits for the outcome.
func (s *Service) ask(ctx context.Context, o order, v store.View) (SteppedDown, error) {
	out := SteppedDown{Group: o.group, Term: v.Token}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	o.Look = func(context.Context) (store.View, bool) { return s.feed.View(o.group) }
	asked, err := s.operations().Ask(waiting, v, o.Order)
	if err != nil {
		return out, err
	}
	out.Outcome, out.Detail = string(asked.Outcome), asked.Detail
	if asked.Outcome == operator.Waiting {
		return out, nil
	}
	if now, err := s.engine.Read(ctx, o.group); err == nil && now.State == tenure.Led {
		out.LeaderNodeID = now.Candidate.ID
	}
	return out, nil
}

// alsoEnded returns the other groups that end with the session of a leader. A caller that may
// not step all of them down may not close the session, and does not learn which they are.
func (s *Service) alsoEnded(ctx context.Context, group string, id store.SessionID) ([]string, error) {
	held, err := s.operations().Held(ctx, store.Scope{"*"}, id)
	if err != nil {
		return nil, err
	}
	for _, g := range held {
		if !s.gate.May(auth.From(ctx), auth.StepDown, g) {
			return nil, httpapi.Refuse(http.StatusForbidden, "denied",
				"the leader of %q leads other groups in the same session, and the policy of this service does not allow the caller to %s on all of them: "+
					"ask without force, or ask the operator", clip(group), auth.StepDown)
		}
	}
	return slices.DeleteFunc(held, func(g string) bool { return g == group }), nil
}

// force closes the whole session of the leader: there is no other way to take a group from
// it. The leader may believe that it leads until its TTL has passed; only the fence protects
// what it writes to.
func (s *Service) force(ctx context.Context, o order, v store.View, to store.Session) (SteppedDown, error) {
	out := SteppedDown{Group: o.group, Term: v.Token, Outcome: "forced", Detail: "its session was closed; it may believe that it leads until its TTL has passed"}
	err := s.engine.End(ctx, v.Holder, store.Forced)
	if err != nil || to.ID == "" {
		return out, err
	}
	// Closing the session is half of a transfer. If the other half fails, the transfer has failed.
	now, err := s.engine.Read(ctx, o.group)
	if err != nil {
		return out, err
	}
	if now.State != tenure.Led {
		got := s.run(ctx, election.Config{Machine: s.lentMachine(to, s.clock.Now()), Groups: []string{o.group}, Deadline: s.deadline(0, 0)}, campaigner{id: auth.From(ctx)}, now)
		if now, _, err = outcomeFor(got, o.group); err != nil {
			return out, err
		}
	}
	if now.State == tenure.Led {
		out.LeaderNodeID = now.Candidate.ID
		if now.Holder != to.ID {
			out.Outcome, out.Detail = string(operator.Ended), fmt.Sprintf("%s; %s was elected instead of %s", out.Detail, now.Candidate.ID, o.To)
		}
	}
	return out, nil
}
