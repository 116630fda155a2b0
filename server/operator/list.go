package operator

import (
	"context"
	"iter"
	"maps"
	"slices"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// Candidates yields the living sessions in scope, in order of succession.
func (s Store) Candidates(ctx context.Context, scope store.Scope) iter.Seq2[store.Session, error] {
	return pages(ctx, s, "", func(ctx context.Context, p store.Page) ([]store.Session, error) { return s.Sessions(ctx, scope, p) },
		func(l store.Session) string { return string(l.ID) })
}

// Views yields the groups in scope that were ever led, by name, after a name.
func (s Store) Views(ctx context.Context, scope store.Scope, after string) iter.Seq2[store.View, error] {
	return pages(ctx, s, after, func(ctx context.Context, p store.Page) ([]store.View, error) { return s.Groups(ctx, scope, p) },
		func(v store.View) string { return v.Group })
}

// Terms yields the terms of a group, newest first.
func (s Store) Terms(ctx context.Context, group string) iter.Seq2[store.Term, error] {
	return pages(ctx, s, "", func(ctx context.Context, p store.Page) ([]store.Term, error) { return s.History(ctx, group, p) },
		func(t store.Term) string { return t.Token.String() })
}

// Policies yields the policies of the groups that begin with prefix, by name, after a name.
// Deleted groups are among them.
func (s Store) Policies(ctx context.Context, prefix, after string) iter.Seq2[Policy, error] {
	if after != "" {
		after = Group(after)
	}
	return func(yield func(Policy, error) bool) {
		for a, err := range s.attributesAfter(ctx, Group(prefix), after) {
			if !yield(ParsePolicy(a), err) {
				return
			}
		}
	}
}

func pages[T any](ctx context.Context, s Store, after string, list func(context.Context, store.Page) ([]T, error), name func(T) string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for page := (store.Page{After: after}); ; {
			call, cancel := context.WithTimeout(ctx, s.Call)
			all, err := list(call, page)
			cancel()
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, one := range all {
				if !yield(one, nil) {
					return
				}
			}
			if len(all) < store.MaxPage {
				return
			}
			page.After = name(all[len(all)-1])
		}
	}
}

// Duplicates returns the living sessions in scope of each node id that more than one process
// uses for the same group.
func (s Store) Duplicates(ctx context.Context, scope store.Scope) ([][]store.Session, error) {
	nodes := make(map[string][]store.Session)
	for l, err := range s.Candidates(ctx, scope) {
		if err != nil {
			return nil, err
		}
		nodes[l.Candidate.ID] = append(nodes[l.Candidate.ID], l)
	}
	var out [][]store.Session
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		all := nodes[node]
		doubled := slices.DeleteFunc(slices.Clone(all), func(a store.Session) bool {
			return !slices.ContainsFunc(all, func(b store.Session) bool { return Duplicate(a, b) })
		})
		if len(doubled) > 0 {
			out = append(out, doubled)
		}
	}
	return out, nil
}

// Vacant returns the groups that were led, have no leader and should have one: not those that
// were deleted or may be vacant.
func (s Store) Vacant(ctx context.Context) ([]string, error) {
	policies := make(map[string]Policy)
	for p, err := range s.Policies(ctx, "", "") {
		if err != nil {
			return nil, err
		}
		policies[p.Group()] = p
	}
	var out []string
	for v, err := range s.Views(ctx, store.Scope{"*"}, "") {
		if err != nil {
			return nil, err
		}
		if p := policies[v.Group]; v.State != tenure.Led && !p.Deleted && !p.MayBeVacant {
			out = append(out, v.Group)
		}
	}
	return out, nil
}

// Held returns the groups that a session leads.
func (s Store) Held(ctx context.Context, scope store.Scope, id store.SessionID) ([]string, error) {
	var out []string
	for v, err := range s.Views(ctx, scope, "") {
		if err != nil {
			return nil, err
		}
		if v.State == tenure.Led && v.Holder == id {
			out = append(out, v.Group)
		}
	}
	return out, nil
}

// AllAttributes yields the attributes whose names begin with prefix.
func (s Store) AllAttributes(ctx context.Context, prefix string) iter.Seq2[store.Attributes, error] {
	return s.attributesAfter(ctx, prefix, "")
}

func (s Store) attributesAfter(ctx context.Context, prefix, after string) iter.Seq2[store.Attributes, error] {
	return pages(ctx, s, after, func(ctx context.Context, p store.Page) ([]store.Attributes, error) {
		return s.ListAttributes(ctx, prefix, p)
	}, func(a store.Attributes) string { return a.Name })
}
