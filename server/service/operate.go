package service

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/operator"
)

const (
	// answerWait is how long an operator waits for the leader's answer by default.
	answerWait = 10 * time.Second
)

// order is what an operator wants of a leader.
type order struct {
	verb     lease.Verb
	group    string
	to       string // transfer
	reason   string
	coolDown time.Duration
	force    bool
	wait     time.Duration
}

func (s *Service) stepDown(w http.ResponseWriter, r *http.Request) error {
	var in StepDownRequest
	if err := s.body(w, r, true, &in); err != nil {
		return err
	}
	if r.Header.Get("If-Match") == "" {
		return &httpapi.Problem{
			Status: http.StatusPreconditionRequired, Code: "term_required",
			Detail: `say which leader is meant, with If-Match: "<term>" as GET leader answers it: another may lead by now`,
		}
	}
	if in.CoolDownMS < 0 || in.CoolDownMS > operator.MaxCoolDown.Milliseconds() {
		return bad("bad_argument", "cool_down_ms: from 0 to %d", operator.MaxCoolDown.Milliseconds())
	}
	return s.command(w, r, order{verb: lease.StepDown, reason: in.Reason, coolDown: time.Duration(in.CoolDownMS) * time.Millisecond})
}

func (s *Service) transfer(w http.ResponseWriter, r *http.Request) error {
	var in StepDownRequest
	if err := s.body(w, r, true, &in); err != nil {
		return err
	}
	to := r.URL.Query().Get("to")
	if !lease.ValidName(to) {
		return bad("bad_argument", "to: the node that is to lead, as ?to=")
	}
	if in.CoolDownMS != 0 {
		return bad("bad_argument", "cool_down_ms: a transfer has none")
	}
	return s.command(w, r, order{verb: lease.Transfer, to: to, reason: in.Reason})
}

// command finds the leader that is meant, and asks or forces it.
func (s *Service) command(w http.ResponseWriter, r *http.Request, o order) error {
	ctx := r.Context()
	o.group = groupOf(r)
	switch f := r.URL.Query().Get("force"); f {
	case "", "false":
	case "true":
		o.force = true
	default:
		return bad("bad_argument", "force: true or false")
	}
	if len(o.reason) > operator.MaxReason {
		return bad("bad_argument", "reason: at most %d bytes", operator.MaxReason)
	}
	var err error
	if o.wait, err = s.waitOf(w, r); err != nil {
		return err
	}
	if !r.URL.Query().Has("wait") {
		o.wait = min(answerWait, s.cfg.MaxWait)
		s.outlast(w, o.wait)
	}
	v, err := s.meant(r, o.group)
	if err != nil {
		return err
	}
	var to lease.Session
	if o.verb == lease.Transfer {
		if o.to == v.Candidate.ID {
			return noSuccessor(o.group, o.to, "it leads already")
		}
		if to, err = s.successor(ctx, o.group, o.to); err != nil {
			return err
		}
	}
	var also []string
	if o.force {
		if also, err = s.endsToo(ctx, o.group, v.Holder); err != nil {
			return err
		}
	}
	cooled := ""
	if o.coolDown > 0 {
		// Before the leader is asked: it must not be back before it is written down.
		cooled, err = s.hand().Cool(ctx, o.group, v.Candidate.ID, o.coolDown)
		if err != nil {
			return err
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
	if cooled != "" && (err != nil && lease.Definite(err) || err == nil && out.Outcome == string(lease.Refused)) {
		// It leads on, so there is nothing to cool down from.
		err := s.hand().Warm(ctx, o.group, v.Candidate.ID, cooled)
		if err != nil {
			s.cfg.Log.Warn("a step-down was refused, and its cool-down could not be taken back", "group", o.group, "node", v.Candidate.ID, "err", err)
		}
	}
	s.audit(ctx, string(o.verb)+forced(o.force), o.group, v.Token, err, o.reason)
	if err != nil {
		return err
	}
	s.traceHandover(ctx, began, o.group, v.Token, o.to, out.Outcome)
	status := http.StatusOK
	if out.Outcome == "waiting" {
		status = http.StatusAccepted
	}
	httpapi.WriteJSON(w, status, out)
	return nil
}

func forced(force bool) string {
	if force {
		return " by force"
	}
	return ""
}

// meant reads the group and compares its leader with the one that the operator means.
func (s *Service) meant(r *http.Request, group string) (lease.View, error) {
	if err := lease.CheckGroup(group); err != nil {
		return lease.View{}, err
	}
	want, err := ifMatch(r)
	if err != nil {
		return lease.View{}, err
	}
	a, err := s.reader.Read(r.Context(), group)
	switch {
	case err != nil:
		return lease.View{}, err
	case want > 0 && a.Token != fence.Token(want):
		return a.View, led(&httpapi.Problem{
			Status: http.StatusPreconditionFailed, Code: "stale_term",
			Detail: fmt.Sprintf("the leader that is meant (term %d) is not the newest: %s; look again before you act", want, whoLeads(a.View)),
		}, a.View, 0)
	case a.State != tenure.Led:
		return a.View, led(&httpapi.Problem{
			Status: http.StatusConflict, Code: "no_leader", Detail: whoLeads(a.View) + ": there is nobody to ask",
		}, a.View, 0)
	}
	return a.View, nil
}

// ask leaves a request with the leader's session and waits for what becomes of it.
func (s *Service) ask(ctx context.Context, o order, v lease.View) (SteppedDown, error) {
	out := SteppedDown{Group: o.group, Term: v.Token}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	asked, err := s.hand().Ask(waiting, v, operator.Order{
		Verb: o.verb, To: o.to, Reason: o.reason, CoolDown: o.coolDown, Wait: o.wait,
		Look: func(context.Context) (lease.View, bool) { return s.feed.View(o.group) },
	})
	if err != nil {
		return out, err
	}
	out.Outcome, out.Detail = string(asked.Outcome), asked.Detail
	if asked.Outcome == operator.Waiting {
		return out, nil
	}
	if a, err := s.reader.Read(ctx, o.group); err == nil && a.State == tenure.Led {
		out.LeaderNodeID = a.Candidate.ID
	}
	return out, nil
}

// endsToo returns the other groups that end with the session of a leader. Who may not step
// all of them down may not close it, and is not told which they are.
func (s *Service) endsToo(ctx context.Context, group string, id lease.SessionID) ([]string, error) {
	held, err := s.hand().Held(ctx, lease.Scope{"*"}, id)
	if err != nil {
		return nil, err
	}
	caller := auth.From(ctx)
	for _, g := range held {
		if !s.gate.May(caller, auth.StepDown, g) {
			return nil, &httpapi.Problem{
				Status: http.StatusForbidden, Code: "denied",
				Detail: fmt.Sprintf("the leader of %q leads other groups in the same session, and the policy of this service does not allow the caller to %s on all of them: "+
					"ask it without force, or ask the operator", clip(group), auth.StepDown),
			}
		}
	}
	return slices.DeleteFunc(held, func(g string) bool { return g == group }), nil
}

// force closes the whole session of the leader, for there is no other way to take a
// group from it. It may go on believing that it leads until its TTL has passed: only
// the fence protects what it writes to.
func (s *Service) force(ctx context.Context, o order, v lease.View, to lease.Session) (SteppedDown, error) {
	out := SteppedDown{Group: o.group, Term: v.Token, Outcome: "forced", Detail: "its session was closed; until its TTL has passed it may believe to lead"}
	if err := s.engine.Close(ctx, v.Holder, lease.Forced); err != nil {
		return out, err
	}
	if to.ID == "" {
		return out, nil
	}
	// The session is closed. That is half of a transfer: without the other half it has failed.
	a, err := s.reader.Read(ctx, o.group)
	if err != nil {
		return out, err
	}
	won := a.View
	if won.State != tenure.Led {
		machine := lease.MachineConfig{Candidate: to.Candidate, Scope: to.Scope, Timing: s.timing(to.TTL), Session: &to, Sent: s.clock.Now(), Lent: true}
		got := s.run(ctx, election.Config{Machine: machine, Groups: []string{o.group}, Deadline: s.deadline(0, 0)}, campaigner{id: auth.From(ctx)}, a.View)
		won = got.Views[o.group]
		if led, ok := got.Led[o.group]; ok {
			won = lease.View{Record: led, State: tenure.Led}
		} else if err := cmp.Or(got.Failed[o.group], got.Err); err != nil {
			return out, err
		}
	}
	if won.State == tenure.Led {
		out.LeaderNodeID = won.Candidate.ID
		if won.Holder != to.ID {
			out.Outcome, out.Detail = string(operator.Ended), fmt.Sprintf("%s; %s was elected instead of %s", out.Detail, won.Candidate.ID, o.to)
		}
	}
	return out, nil
}
