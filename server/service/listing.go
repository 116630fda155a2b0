package service

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/operator"
)

// maxPages bounds how many pages of the engine one listing reads to find groups that the
// caller may observe.
const maxPages = 10

// groups lists the groups that were created or led, and that the caller may observe.
func (s *Service) groups(_ http.ResponseWriter, r *http.Request) (any, error) {
	page, err := pageOf(r)
	prefix := r.URL.Query().Get("prefix")
	if err = cmp.Or(err, (lease.Scope{prefix + "*"}).Validate()); err != nil {
		return nil, err
	}
	if page.After != "" && !lease.ValidName(page.After) {
		return nil, bad("bad_page", "after: want the name of the last group of the last page")
	}
	return s.visible(r.Context(), prefix, page)
}

// listing collects the groups of one page.
type listing struct {
	s       *Service
	id      auth.Identity
	created []string // created groups that are not in out yet, in order
	limit   int
	out     Groups
	full    bool
}

func (s *Service) visible(ctx context.Context, prefix string, page lease.Page) (Groups, error) {
	names, err := s.created.Names(ctx, prefix, page.After)
	if err != nil {
		return Groups{}, err
	}
	id := auth.From(ctx)
	names = slices.DeleteFunc(names, func(g string) bool { return !s.gate.May(id, auth.Observe, g) })
	l := &listing{s: s, id: id, created: names, limit: page.Limit, out: Groups{Groups: []Group{}}}
	for range maxPages {
		cctx, cancel := s.call(ctx)
		views, err := s.store.Groups(cctx, lease.Scope{prefix + "*"}, lease.Page{After: page.After})
		cancel()
		if err != nil {
			return l.out, err
		}
		for _, v := range views {
			page.After = v.Group
			if err := l.createdBefore(ctx, v.Group); err != nil || l.full {
				return l.out, err
			}
			l.show(groupWire(v))
			if l.full {
				return l.out, nil
			}
		}
		if len(views) < lease.MaxPage {
			err := l.createdBefore(ctx, "")
			return l.out, err
		}
	}
	l.out.Next = page.After
	return l.out, nil
}

// show adds a group if the caller may observe it. If the page is full it sets full.
func (l *listing) show(g Group) {
	switch {
	case !l.s.gate.May(l.id, auth.Observe, g.Group):
	case len(l.out.Groups) == l.limit:
		l.out.Next = l.out.Groups[l.limit-1].Group
		l.full = true
	default:
		l.out.Groups = append(l.out.Groups, g)
	}
}

// createdRead is how many policies are read at once.
const createdRead = 64

// createdBefore shows the groups that were created, never led, and sort before a group;
// "": all that are left.
func (l *listing) createdBefore(ctx context.Context, group string) error {
	for !l.full {
		n := 0
		for n < min(len(l.created), createdRead) && (group == "" || l.created[n] < group) {
			n++
		}
		if n == 0 {
			break
		}
		names := make([]string, n)
		for i, g := range l.created[:n] {
			names[i] = operator.Group(g)
		}
		policies, err := l.s.attributes(ctx, names...)
		if err != nil {
			return err
		}
		for i, g := range l.created[:n] {
			if p := operator.ParsePolicy(policies[i]); p.Declared && !p.Deleted && !l.full {
				l.show(Group{Group: g, State: tenure.Vacant.String(), Declared: true})
			}
		}
		l.created = l.created[n:]
	}
	if len(l.created) > 0 && l.created[0] == group {
		l.created = l.created[1:] // it was led as well
	}
	return nil
}

func groupWire(v lease.View) Group {
	g := Group{Group: v.Group, State: tenure.Vacant.String(), Term: v.Token}
	if v.State == tenure.Led {
		g.State, g.LeaderNodeID = tenure.Led.String(), v.Candidate.ID
	}
	return g
}
