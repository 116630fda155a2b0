package service

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/app/service/access"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
)

// rally is one session's campaign for many groups.
type rally struct {
	id      access.Identity
	session lease.Session
	wanted  map[string]bool // not led yet, and not refused
	led     map[string]lease.View
	refused map[string]BatchRefuse
	due     map[string]clock.Instant // vacant groups: when it is our turn
	unsure  map[string]uint64        // tries that may still succeed: from which version
	seen    map[string]lease.View    // the newest look at what is not led
}

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
	b := &rally{
		id: access.From(ctx), session: session,
		wanted: make(map[string]bool), led: make(map[string]lease.View), refused: make(map[string]BatchRefuse),
		due: make(map[string]clock.Instant), unsure: make(map[string]uint64), seen: make(map[string]lease.View),
	}
	beat, sent, err := s.keep(ctx, session.ID)
	if err != nil {
		return err
	}
	if err := s.enlist(ctx, b, in.Groups); err != nil {
		return err
	}
	err = s.rally(ctx, b, time.Duration(max(0, int64(wait-s.clock.Now().Sub(arrived)))), wait > 0)
	err = s.giveUp(b, err)
	s.audit(ctx, "campaign for many", "", 0, err, "")
	if err != nil {
		return err
	}
	out := b.answer(beat.TTL)
	out.HeldMS, out.Expiry = s.held(arrived, sent), s.expiry(sent, beat.TTL)
	httpapi.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (b *rally) answer(ttl time.Duration) Batch {
	out := Batch{Led: []BatchTerm{}, Refused: []BatchRefuse{}, TTLMS: ttl.Milliseconds()}
	for g, v := range b.led {
		out.Led = append(out.Led, BatchTerm{Group: g, Term: v.Token})
	}
	for _, no := range b.refused {
		out.Refused = append(out.Refused, no)
	}
	slices.SortFunc(out.Led, func(a, b BatchTerm) int { return compare(a.Group, b.Group) })
	slices.SortFunc(out.Refused, func(a, b BatchRefuse) int { return compare(a.Group, b.Group) })
	return out
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// enlist sorts out the groups that the session may not lead.
func (s *Service) enlist(ctx context.Context, b *rally, groups []string) error {
	for _, g := range groups {
		if err := lease.CheckGroup(g); err != nil {
			return err
		}
		if !b.session.Scope.Covers(g) {
			return outOfScope(g)
		}
		if !s.gate.May(b.id, access.Campaign, g) {
			return denied(access.Campaign, g)
		}
	}
	node := b.session.Candidate.ID
	more := 0
	for _, g := range groups {
		if v, _ := s.feed.View(g); !leads(v, node) {
			more++
		}
	}
	if err := s.room(b.id, node, more); err != nil {
		return err
	}
	for _, g := range groups {
		b.wanted[g] = true
	}
	return s.muster(ctx, b, groups)
}

// muster sorts out the groups that what is laid down keeps the session from leading. It is
// asked right before something is taken, so nothing is remembered here.
func (s *Service) muster(ctx context.Context, b *rally, groups []string) error {
	attributes, err := s.node(ctx, b.session.Candidate.ID)
	if err != nil {
		return err
	}
	policies, err := s.policies.fresh(ctx, groups)
	if err != nil {
		return err
	}
	barred := make(map[string]*httpapi.Problem)
	var held []string
	for _, g := range groups {
		if p := s.fits(policies[g], attributes, g, b.session); p != nil {
			barred[g] = p
			if v, _ := s.feed.View(g); b.holds(v) {
				held = append(held, g)
			}
		}
	}
	views, err := s.readAll(ctx, held)
	if err != nil {
		return err
	}
	for _, v := range views {
		if b.holds(v) {
			b.win(v) // what it leads it leads on
			delete(barred, v.Group)
		}
	}
	for g, p := range barred {
		b.refused[g] = BatchRefuse{Group: g, Code: p.Code}
		delete(b.wanted, g)
		delete(b.due, g)
	}
	return nil
}

// giveUp says who leads what the session does not, and of which groups nobody can tell yet.
// Whatever else went wrong, what it leads is told: the caller keeps it alive unknowingly
// otherwise.
func (s *Service) giveUp(b *rally, err error) error {
	if err == nil && len(b.led) == 0 && len(b.unsure) > 0 {
		err = errUnsure
	}
	if err != nil && (len(b.led) == 0 || lease.Definite(err) || isProblem(err)) {
		return err
	}
	for g := range b.wanted {
		no := BatchRefuse{Group: g, Code: "not_leader"}
		v, _ := s.feed.View(g)
		if last := b.seen[g]; last.Version > v.Version {
			v = last
		}
		if v.State == tenure.Led {
			no.LeaderNodeID, no.Term = v.Candidate.ID, v.Token
		}
		b.refused[g] = no
	}
	for g := range b.unsure {
		b.refused[g] = BatchRefuse{Group: g, Code: explain(errUnsure).Code}
	}
	return nil
}
