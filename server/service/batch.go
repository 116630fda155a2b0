package service

import (
	"cmp"
	"errors"
	"net/http"
	"slices"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
)

// batch campaigns for many groups within a session: one keep-alive carries them all,
// and what falls vacant at once is taken in few steps.
func (s *Service) batch(w http.ResponseWriter, r *http.Request) error {
	arrived := s.clock.Now()
	h, err := s.parseHandle(r.PathValue("handle"))
	if err != nil {
		return err
	}
	var in BatchRequest
	if err := s.body(w, r, false, &in); err != nil {
		return err
	}
	if len(in.Groups) == 0 || len(in.Groups) > maxBatch {
		return bad("bad_argument", "groups: from 1 to %d names", maxBatch)
	}
	wait, err := s.waitOf(w, r)
	if err != nil {
		return err
	}
	ctx := r.Context()
	session, err := s.mine(ctx, h)
	if err != nil {
		return err
	}
	id := auth.From(ctx)
	if err := s.mayLead(id, session, in.Groups); err != nil {
		return err
	}
	cfg := election.Config{Groups: slices.Compact(slices.Sorted(slices.Values(in.Groups))), Wait: wait > 0, Deadline: s.deadline(arrived, wait)}
	if cfg.Machine, err = s.lent(ctx, session); err != nil {
		return err
	}
	out := s.run(ctx, cfg, campaigner{id: id})
	answer, err := batchOf(out)
	s.audit(ctx, "campaign for many", "", 0, err, "")
	if err != nil {
		return err
	}
	answer.TTLMS, answer.HeldMS, answer.Expiry = out.Session.TTL.Milliseconds(), s.held(arrived, out.Sent), s.expiry(out.Sent, out.Session.TTL)
	httpapi.WriteJSON(w, http.StatusOK, answer)
	return nil
}

// mayLead checks that the session may campaign for the groups.
func (s *Service) mayLead(id auth.Identity, l lease.Session, groups []string) error {
	more := 0
	for _, g := range groups {
		if err := lease.CheckGroup(g); err != nil {
			return err
		}
		if !l.Scope.Covers(g) {
			return outOfScope(g)
		}
		if !s.gate.May(id, auth.Campaign, g) {
			return denied(auth.Campaign, g)
		}
		if v, _ := s.feed.View(g); !leads(v, l.Candidate.ID) {
			more++
		}
	}
	return s.room(id, l.Candidate.ID, more)
}

// errUnsure: a try got no answer and may still succeed.
var errUnsure = errors.New("service: the outcome of a try for a group is unknown")

// batchOf says what the session leads, who leads the rest, and of which groups nobody can
// tell yet. Whatever else went wrong, what it leads is told: the caller keeps it alive
// unknowingly otherwise.
func batchOf(o election.Outcome) (Batch, error) {
	out := Batch{Led: []BatchTerm{}, Refused: []BatchRefuse{}}
	for g, r := range o.Led {
		out.Led = append(out.Led, BatchTerm{Group: g, Term: r.Token})
	}
	for g, v := range o.Views {
		no := BatchRefuse{Group: g, Code: "not_leader"}
		var bar *lease.BarError
		switch err := o.Failed[g]; {
		case errors.As(err, &bar):
			no.Code = bar.Code
		case err != nil:
			return out, err
		case o.Unsure[g]:
			no.Code = explain(errUnsure).Code
		case v.State == tenure.Led:
			no.LeaderNodeID, no.Term = v.Candidate.ID, v.Token
		}
		out.Refused = append(out.Refused, no)
	}
	switch {
	case len(o.Led) > 0:
	case o.Err != nil:
		return out, o.Err
	case len(o.Unsure) > 0:
		return out, errUnsure
	}
	slices.SortFunc(out.Led, func(a, b BatchTerm) int { return cmp.Compare(a.Group, b.Group) })
	slices.SortFunc(out.Refused, func(a, b BatchRefuse) int { return cmp.Compare(a.Group, b.Group) })
	return out, nil
}
