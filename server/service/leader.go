package service

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store"
)

func (s *Service) leader(w http.ResponseWriter, r *http.Request) (any, error) {
	group := groupOf(r)
	if err := store.CheckGroup(group); err != nil {
		return nil, err
	}
	seen, err := s.groupView(r, group)
	if err != nil {
		return nil, err
	}
	v := seen.View
	if v.State != tenure.Led {
		p := httpapi.Refuse(http.StatusNotFound, "no_leader", "%s: campaign to lead it, or watch it", whoLeads(v)).Retry(0)
		if seen.aged {
			p.More = map[string]any{"age_ms": seen.age.Milliseconds()}
		}
		return nil, led(p, v, 0)
	}
	tag := etag(uint64(v.Token))
	w.Header().Set("ETag", tag)
	w.Header().Set("Cache-Control", "no-cache")
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return nil, nil
	}
	if seen.kept == nil {
		return s.describeLeader(r.Context(), group, seen), nil
	}
	body, err := seen.kept.Say(seen.age.Milliseconds(), func() ([]byte, error) { return httpapi.EncodeJSON(s.describeLeader(r.Context(), group, seen)) })
	if err == nil {
		httpapi.WriteBody(w, http.StatusOK, body)
	}
	return nil, err
}

func (s *Service) describeLeader(ctx context.Context, group string, seen groupView) Leader {
	v := seen.View
	out := Leader{
		Group: group, LeaderNodeID: v.Candidate.ID, Address: v.Candidate.Address, Term: v.Token,
		Metadata: orEmpty(v.Candidate.Metadata),
	}
	left, known := s.sessions.Remaining(v.Holder, s.clock.Now())
	if !known && seen.kept == nil {
		// The feed is behind. The answer is also true without the session.
		if l, err := s.engine.Session(ctx, v.Holder); err == nil {
			left, known = l.TTL, true
		}
	}
	if known {
		ms := left.Milliseconds()
		out.LeaseRemainingMS, out.Expiry = &ms, s.expiry(s.clock.Now(), left)
	}
	if n := len(v.Terms); n > 0 {
		out.SinceMS = v.Terms[n-1].Begin.UnixMilli()
	}
	if seen.aged {
		ms := seen.age.Milliseconds()
		out.AgeMS = &ms
	}
	return out
}

// groupView is a view of a group, and its age if the caller allowed one.
type groupView struct {
	feed.Answer
	age  time.Duration
	aged bool
	kept *feed.Remembered // set if the view comes from the cache
}

// groupView reads a group linearizably or, with ?stale, from the cache if that is fresh enough. A
// quarter of the TTL is the most that counts.
func (s *Service) groupView(r *http.Request, group string) (groupView, error) {
	text, _ := httpapi.Parameter(r.URL, "stale")
	if text == "" {
		answer, err := s.reader.Read(r.Context(), group)
		return groupView{Answer: answer}, err
	}
	stale, err := time.ParseDuration(text)
	if err != nil || stale < 0 {
		return groupView{}, bad("bad_stale", "stale: want a duration such as 500ms; at most a quarter of the TTL counts")
	}
	kept, age, known := s.reader.Recent(group)
	if known && age <= min(stale, s.stalest(kept.View)) {
		return groupView{kept.Answer, age, true, kept}, nil
	}
	answer, err := s.reader.Read(r.Context(), group)
	return groupView{answer, s.clock.Now().Sub(answer.Asked), true, nil}, err
}

// stalest is how old an answer may be: a quarter of the leader's TTL or, while that is not
// known, a quarter of the shortest TTL of the engine.
func (s *Service) stalest(v store.View) time.Duration {
	if v.State != tenure.Led {
		return s.cfg.TTL / 4
	}
	if holder, known := s.sessions.Known(v.Holder); known {
		return holder.TTL / 4
	}
	return s.store.Caps().MinTTL / 4
}

func pageOf(r *http.Request) (store.Page, error) {
	q := r.URL.Query()
	p := store.Page{After: q.Get("after"), Limit: 100}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > store.MaxPage {
			return p, bad("bad_page", "limit: from 1 to %d", store.MaxPage)
		}
		p.Limit = n
	}
	return p, nil
}

func (s *Service) history(_ http.ResponseWriter, r *http.Request) (any, error) {
	page, err := pageOf(r)
	if err != nil {
		return nil, err
	}
	if page.After != "" {
		if _, err := fence.ParseToken(page.After); err != nil {
			return nil, bad("bad_page", "after: want the term of the last entry of the last page")
		}
	}
	ctx, cancel := s.call(r.Context())
	defer cancel()
	terms, err := s.store.History(ctx, groupOf(r), page)
	if err != nil {
		return nil, err
	}
	out := History{Group: groupOf(r), Terms: make([]Term, len(terms))}
	for i, t := range terms {
		out.Terms[i] = termOf(t, time.Now())
	}
	if len(terms) == page.Limit {
		out.Next = terms[len(terms)-1].Token.String()
	}
	return out, nil
}

func termOf(t store.Term, now time.Time) Term {
	out := Term{Term: t.Token, NodeID: t.Candidate, BeginMS: t.Begin.UnixMilli(), Reason: string(t.Reason)}
	if !t.End.IsZero() {
		now = t.End
		out.EndMS = t.End.UnixMilli()
	}
	out.DurationMS = max(0, now.Sub(t.Begin).Milliseconds())
	return out
}

// CandidateOf describes a session that is a candidate for the group of a view.
func CandidateOf(l store.Session, v store.View) Candidate {
	c := l.Candidate
	return Candidate{
		NodeID: c.ID, Address: c.Address, Priority: c.Priority, Metadata: c.Metadata, TTLMS: l.TTL.Milliseconds(),
		Leads: v.State == tenure.Led && v.Holder == l.ID,
	}
}

func (s *Service) candidates(_ http.ResponseWriter, r *http.Request) (any, error) {
	group := groupOf(r)
	page, err := pageOf(r)
	if err == nil && page.After != "" {
		var h handle
		h, err = s.parseHandle(page.After)
		page.After = string(h.session)
	}
	if err != nil {
		return nil, err
	}
	v, err := s.engine.Read(r.Context(), group)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.call(r.Context())
	defer cancel()
	line, err := s.store.Sessions(ctx, store.Scope{group}, page)
	if err != nil {
		return nil, err
	}
	names := []string{operator.Group(group)}
	for _, l := range line {
		names = append(names, operator.Node(l.Candidate.ID))
	}
	laid, err := s.attributes(ctx, names...)
	if err != nil {
		return nil, err
	}
	out := Candidates{Group: group, Candidates: make([]Candidate, len(line))}
	for i, l := range line {
		out.Candidates[i] = CandidateOf(l, v)
		if p := s.admits(operator.ParsePolicy(laid[0]), laid[1+i], group, l); p != nil {
			out.Candidates[i].Barred = p.Code
		}
	}
	if len(line) == page.Limit {
		out.Next = s.handleOf(line[len(line)-1].ID, group)
	}
	return out, nil
}
