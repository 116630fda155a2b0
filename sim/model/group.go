package model

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

// historyKept is how many terms History reaches back. Twice as many are stored
// before the older half is dropped, so that a grant costs the same however many
// there were.
const historyKept = 4 * lease.HistoryKept

// group is a record and what belongs to it. It is made by the first grant.
type group struct {
	// rec.Terms is the tail of terms as it was last handed out, nil when that is
	// out of date: it is made anew and never written to.
	rec     lease.Record
	holder  *session // nil: vacant
	slot    int      // in holder.holds
	terms   []lease.Term
	changed bool
}

// record returns the record with its terms.
func (g *group) record() lease.Record {
	if g.rec.Terms == nil {
		g.rec.Terms = slices.Clone(g.terms[max(0, len(g.terms)-lease.TermsKept):])
	}
	return g.rec
}

func (g *group) view() lease.View {
	v := lease.View{Record: g.record(), State: tenure.Vacant}
	if g.holder != nil {
		v.State = tenure.Led
	}
	return v
}

// end closes the present term, if there is one.
func (g *group) end(at time.Time, why lease.Reason) {
	if len(g.terms) == 0 {
		return
	}
	if last := &g.terms[len(g.terms)-1]; last.End.IsZero() {
		last.End, last.Reason = at, why
		g.rec.Terms = nil
	}
}

// begin opens the next term, in the next version.
func (g *group) begin(at time.Time, token fence.Token, of lease.Session) {
	g.end(at, lease.Lost)
	g.rec.Version++
	g.rec.Token, g.rec.Holder, g.rec.Candidate = token, of.ID, of.Candidate
	if len(g.terms) == 2*historyKept {
		g.terms = g.terms[:copy(g.terms, g.terms[historyKept:])]
	}
	g.terms = append(g.terms, lease.Term{Token: token, Candidate: of.Candidate.ID, Session: of.ID, Begin: at})
	g.rec.Terms = nil
}

// hold gives the group a living holder, drop takes it away.
func (s *State) hold(g *group, n *session) {
	g.holder, g.slot = n, len(n.holds)
	n.holds = append(n.holds, g)
}

func (s *State) drop(g *group) {
	if g.holder == nil {
		return
	}
	holds := g.holder.holds
	last := len(holds) - 1
	holds[g.slot] = holds[last]
	holds[g.slot].slot = g.slot
	holds[last] = nil
	g.holder.holds = holds[:last]
	g.holder = nil
}

// viewOf is the view of a group that may never have been granted.
func (s *State) viewOf(name string) lease.View {
	if g := s.groups[name]; g != nil {
		return g.view()
	}
	return lease.View{Record: lease.Record{Group: name}, State: tenure.Vacant}
}

// Read returns the present view.
func (s *State) Read(now clock.Instant, group string) (lease.View, error) {
	s.Expire(now)
	if err := lease.CheckGroup(group); err != nil {
		return lease.View{}, err
	}
	return s.viewOf(group), nil
}

// Acquire grants all records to the session, or none. Whether the session
// stands for the groups is its own affair.
func (s *State) Acquire(now clock.Instant, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	s.Expire(now)
	if err := lease.CheckBatch(s.limits, seen); err != nil {
		return nil, err
	}
	n := s.sessions[id]
	if n == nil {
		return nil, dead(id)
	}
	if s.refuseRewound() {
		return nil, lease.ErrRewound
	}
	tokens := make([]fence.Token, len(seen))
	var conflicts []lease.View
	for i, r := range seen {
		v := s.viewOf(r.Group)
		taken := v.State == tenure.Led && !s.plant.Has(plant.AcquireFromLiving)
		moved := v.Version != r.Version && !s.plant.Has(plant.AcquireAnyVersion)
		if taken || moved {
			conflicts = append(conflicts, v)
			continue
		}
		token, err := s.nextToken(v.Record)
		if err != nil {
			return nil, err
		}
		tokens[i] = token
	}
	if conflicts != nil && !s.plant.Has(plant.TornBatch) {
		return nil, &lease.ConflictError{Current: conflicts}
	}
	granted := make([]lease.Record, 0, len(seen))
	for i, r := range seen {
		if tokens[i] != 0 {
			granted = append(granted, s.grant(now, r.Group, tokens[i], n))
		}
	}
	if conflicts != nil {
		return nil, &lease.ConflictError{Current: conflicts}
	}
	return granted, nil
}

// grant makes n the holder.
func (s *State) grant(now clock.Instant, name string, token fence.Token, n *session) lease.Record {
	g := s.groups[name]
	if g == nil {
		g = &group{rec: lease.Record{Group: name}}
		s.groups[name] = g
		s.sorted = s.sorted && len(s.names) > 0 && s.names[len(s.names)-1] < name
		s.names = append(s.names, name)
	}
	s.drop(g)
	g.begin(s.wall(now), token, n.Session)
	if s.sessions[n.ID] == n {
		s.hold(g, n)
	}
	s.touch(g)
	s.bump()
	return g.record()
}

// nextToken never gives a token twice. An epoch without tokens left grants
// nothing until it is raised.
func (s *State) nextToken(r lease.Record) (fence.Token, error) {
	epoch := s.epoch
	if s.plant.Has(plant.EpochIgnored) {
		epoch = 0
	}
	token, err := r.Token.Next(epoch)
	if err != nil {
		return 0, fmt.Errorf("mem: group %q: %w: %w", r.Group, lease.ErrBusy, err)
	}
	return token, nil
}

func (s *State) refuseRewound() bool { return s.rewound && !s.plant.Has(plant.GrantRewound) }

// Release gives up what the session holds in exactly this version.
func (s *State) Release(now clock.Instant, id lease.SessionID, held lease.Record, to lease.SessionID, why lease.Reason) (lease.Record, error) {
	s.Expire(now)
	if err := lease.CheckGroup(held.Group); err != nil {
		return lease.Record{}, err
	}
	n := s.sessions[id]
	if n == nil {
		return lease.Record{}, dead(id)
	}
	g := s.groups[held.Group]
	same := g != nil && (g.rec.Version == held.Version && g.holder == n || s.plant.Has(plant.ReleaseAnyVersion))
	if !same {
		return lease.Record{}, &lease.ConflictError{Current: []lease.View{s.viewOf(held.Group)}}
	}
	if to == "" {
		return s.vacate(now, g, cmp.Or(why, lease.Resigned)), nil
	}
	if s.refuseRewound() {
		return lease.Record{}, lease.ErrRewound
	}
	successor := s.sessions[to]
	if s.plant.Has(plant.SuccessorUnchecked) && successor == nil {
		successor = &session{Session: lease.Session{ID: to}}
	}
	stands := successor != nil && successor != n && successor.Scope.Covers(held.Group)
	if !stands && !s.plant.Has(plant.SuccessorUnchecked) {
		return lease.Record{}, fmt.Errorf("mem: session %q cannot take group %q: %w", to, held.Group, lease.ErrSuccessor)
	}
	token, err := s.nextToken(g.rec)
	if err != nil {
		return lease.Record{}, err
	}
	if s.plant.Has(plant.TokenNotRaised) {
		token = g.rec.Token
	}
	g.end(s.wall(now), cmp.Or(why, lease.Transferred))
	return s.grant(now, held.Group, token, successor), nil
}

// vacate keeps the token: the next grant goes on from it.
func (s *State) vacate(now clock.Instant, g *group, why lease.Reason) lease.Record {
	s.drop(g)
	g.end(s.wall(now), why)
	g.rec.Version++
	g.rec.Holder = ""
	if s.plant.Has(plant.TokenReset) {
		g.rec.Token = 0
	}
	s.touch(g)
	s.bump()
	return g.record()
}

// Groups lists views by name.
func (s *State) Groups(now clock.Instant, scope lease.Scope, p lease.Page) ([]lease.View, error) {
	s.Expire(now)
	if err := scope.Validate(); err != nil {
		return nil, err
	}
	limit, err := p.Size()
	if err != nil {
		return nil, err
	}
	names := s.sortedNames()
	i, found := slices.BinarySearch(names, p.After)
	if found {
		i++
	}
	var page []lease.View
	for _, name := range names[i:] {
		if len(page) == limit {
			break
		}
		if scope.Covers(name) {
			page = append(page, s.groups[name].view())
		}
	}
	return page, nil
}

func (s *State) sortedNames() []string {
	if !s.sorted {
		slices.Sort(s.names)
		s.sorted = true
	}
	return s.names
}

// History lists terms, newest first. The page begins below the token that it
// names.
func (s *State) History(now clock.Instant, name string, p lease.Page) ([]lease.Term, error) {
	s.Expire(now)
	if err := lease.CheckGroup(name); err != nil {
		return nil, err
	}
	limit, err := p.Size()
	if err != nil {
		return nil, err
	}
	below := fence.MaxToken + 1
	if p.After != "" {
		if below, err = fence.ParseToken(p.After); err != nil {
			return nil, &lease.ArgumentError{Field: "page after", Value: p.After, Rule: "the token of a term: " + strconv.Quote(fence.Token(1).String()) + " and up"}
		}
	}
	g := s.groups[name]
	if g == nil {
		return nil, nil
	}
	var page []lease.Term
	terms := g.terms[max(0, len(g.terms)-historyKept):]
	for i := len(terms) - 1; i >= 0 && len(page) < limit; i-- {
		if terms[i].Token < below {
			page = append(page, terms[i])
		}
	}
	return page, nil
}
