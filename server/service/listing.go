package service

import (
	"context"
	"net/http"
	"slices"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/operator"
)

// maxPages bounds how many pages of the engine one listing looks through for groups
// that the caller may see.
const maxPages = 10

// groups lists those that were created or ever led, and that the caller may observe.
func (s *Service) groups(w http.ResponseWriter, r *http.Request) error {
	page, err := pageOf(r)
	if err != nil {
		return err
	}
	prefix := r.URL.Query().Get("prefix")
	if err := (lease.Scope{prefix + "*"}).Validate(); err != nil {
		return err
	}
	if page.After != "" && !lease.ValidName(page.After) {
		return bad("bad_page", "after: the name of the last page's last group")
	}
	out, err := s.visible(r.Context(), prefix, page)
	if err != nil {
		return err
	}
	httpapi.WriteJSON(w, http.StatusOK, out)
	return nil
}

// shelf is a listing under way.
type shelf struct {
	s       *Service
	id      auth.Identity
	created []string // what was created and not shown yet, in order
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
	l := &shelf{s: s, id: id, created: names, limit: page.Limit, out: Groups{Groups: []Group{}}}
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

// show adds a group that the caller may see; one too many says that there are more.
func (l *shelf) show(g Group) {
	switch {
	case !l.s.gate.May(l.id, auth.Observe, g.Group):
	case len(l.out.Groups) == l.limit:
		l.out.Next = l.out.Groups[l.limit-1].Group
		l.full = true
	default:
		l.out.Groups = append(l.out.Groups, g)
	}
}

// createdRead is how many policies are looked at before the next are.
const createdRead = 64

// createdBefore shows what was created, never led, and comes before a group; "" is all
// that is left.
func (l *shelf) createdBefore(ctx context.Context, group string) error {
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
		laid, err := l.s.laid(ctx, names...)
		if err != nil {
			return err
		}
		for i, g := range l.created[:n] {
			if p := operator.ParsePolicy(laid[i]); p.Declared && !p.Deleted && !l.full {
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
