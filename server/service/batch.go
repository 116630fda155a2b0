package service

import (
	"cmp"
	"errors"
	"net/http"
	"slices"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/store"
)

// maxBatch is how many groups one campaign may name.
const maxBatch = 1000

// batch campaigns for many groups within a session. One keep-alive renews them all, and
// groups that become vacant at once are acquired in few calls.
func (s *Service) batch(w http.ResponseWriter, r *http.Request, in BatchRequest) (any, error) {
	arrived, ctx := s.clock.Now(), r.Context()
	if len(in.Groups) == 0 || len(in.Groups) > maxBatch {
		return nil, bad("bad_argument", "groups: from 1 to %d names", maxBatch)
	}
	wait, err := s.waitOf(w, r)
	if err != nil {
		return nil, err
	}
	session, err := s.allowedSession(r)
	if err != nil {
		return nil, err
	}
	id := auth.From(ctx)
	if err := s.mayLead(id, session, in.Groups); err != nil {
		return nil, err
	}
	cfg := election.Config{Groups: slices.Compact(slices.Sorted(slices.Values(in.Groups))), Wait: wait > 0, Deadline: s.deadline(arrived, wait)}
	if cfg.Machine, err = s.clientMachine(ctx, session); err != nil {
		return nil, err
	}
	out := s.run(ctx, cfg, campaigner{id: id})
	answer, err := batchOf(out)
	s.audit(ctx, "campaign for many", "", 0, err, "")
	answer.TTLMS, answer.HeldMS, answer.Expiry = out.Session.TTL.Milliseconds(), s.held(arrived, out.Sent), s.expiry(out.Sent, out.Session.TTL)
	return answer, err
}

// mayLead checks that the session may campaign for the groups.
func (s *Service) mayLead(id auth.Identity, l store.Session, groups []string) error {
	more := 0
	for _, g := range groups {
		if err := store.CheckGroup(g); err != nil {
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
	return s.checkGroupQuota(id, l.Candidate.ID, more)
}

// errUnsure: an attempt got no answer and may still succeed.
var errUnsure = errors.New("service: the outcome of an attempt for a group is unknown")

// batchOf lists the groups that the session leads and those that it does not. If it leads any,
// that is the answer whatever else failed: the caller must know what its keep-alives renew.
func batchOf(o election.Outcome) (Batch, error) {
	out := Batch{Led: []BatchTerm{}, Refused: []BatchRefuse{}}
	for g, r := range o.Led {
		out.Led = append(out.Led, BatchTerm{Group: g, Term: r.Token})
	}
	for g, v := range o.Views {
		no := BatchRefuse{Group: g, Code: "not_leader"}
		var bar *store.BarError
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
	if len(o.Led) == 0 && o.Err != nil {
		return out, o.Err
	}
	if len(o.Led) == 0 && len(o.Unsure) > 0 {
		return out, errUnsure
	}
	slices.SortFunc(out.Led, func(a, b BatchTerm) int { return cmp.Compare(a.Group, b.Group) })
	slices.SortFunc(out.Refused, func(a, b BatchRefuse) int { return cmp.Compare(a.Group, b.Group) })
	return out, nil
}
