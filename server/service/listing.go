package service

import (
	"cmp"
	"context"
	"iter"
	"net/http"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/store"
)

// maxLooked bounds how many groups one listing reads to find those that the caller may observe.
const maxLooked = 10 * store.MaxPage

// groups lists the groups that were created or led, and that the caller may observe.
func (s *Service) groups(_ http.ResponseWriter, r *http.Request) (any, error) {
	page, err := pageOf(r)
	prefix := r.URL.Query().Get("prefix")
	if err := cmp.Or(err, (store.Scope{prefix + "*"}).Validate()); err != nil {
		return nil, err
	}
	if page.After != "" && !store.ValidName(page.After) {
		return nil, bad("bad_page", "after: want the name of the last group of the last page")
	}
	out, looked, last := Groups{Groups: []Group{}}, 0, ""
	for g, err := range s.everyGroup(r.Context(), prefix, page.After) {
		switch {
		case err != nil:
			return nil, err
		case looked == maxLooked:
			out.Next = last
			return out, nil
		case !s.gate.May(auth.From(r.Context()), auth.Observe, g.Group):
		case len(out.Groups) == page.Limit:
			out.Next = out.Groups[page.Limit-1].Group
			return out, nil
		default:
			out.Groups = append(out.Groups, g)
		}
		looked, last = looked+1, g.Group
	}
	return out, nil
}

// everyGroup yields the groups that were led and those that were only created, by name,
// without those that were deleted.
func (s *Service) everyGroup(ctx context.Context, prefix, after string) iter.Seq2[Group, error] {
	return func(yield func(Group, error) bool) {
		policies, stop := iter.Pull2(s.operations().Policies(ctx, prefix, after))
		defer stop()
		p, perr, more := policies()
		// createdBefore yields the created groups before a name; "": all that are left.
		createdBefore := func(next string) bool {
			for ; more && (perr != nil || next == "" || p.Group() < next); p, perr, more = policies() {
				if perr == nil && !p.Exists() {
					continue
				}
				if !yield(Group{Group: p.Group(), State: tenure.Vacant.String(), Declared: true}, perr) {
					return false
				}
			}
			return true
		}
		for v, err := range s.operations().Views(ctx, store.Scope{prefix + "*"}, after) {
			if err != nil {
				yield(Group{}, err)
				return
			}
			if !createdBefore(v.Group) {
				return
			}
			gone := false
			if more && p.Group() == v.Group { // it was led as well
				gone = p.Gone(v)
				p, perr, more = policies()
			}
			if !gone && !yield(groupWire(v), nil) {
				return
			}
		}
		createdBefore("")
	}
}

func groupWire(v store.View) Group {
	g := Group{Group: v.Group, State: tenure.Vacant.String(), Term: v.Token}
	if v.State == tenure.Led {
		g.State, g.LeaderNodeID = tenure.Led.String(), v.Candidate.ID
	}
	return g
}
