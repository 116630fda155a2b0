package etcd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// Groups implements lease.Store.
func (s *Store) Groups(ctx context.Context, scope lease.Scope, p lease.Page) ([]lease.View, error) {
	limit, err := p.Size()
	if err := errors.Join(err, scope.Validate()); err != nil {
		return nil, err
	}
	pic, err := s.picture(ctx, scope)
	if err != nil {
		return nil, err
	}
	var views []lease.View
	for _, g := range slices.Sorted(maps.Keys(pic.records)) {
		if g > p.After && len(views) < limit {
			views = append(views, pic.view(g))
		}
	}
	return views, nil
}

// Sessions implements lease.Store.
func (s *Store) Sessions(ctx context.Context, scope lease.Scope, p lease.Page) ([]lease.Session, error) {
	limit, err := p.Size()
	if err := errors.Join(err, scope.Validate()); err != nil {
		return nil, err
	}
	resp, err := s.do(ctx, "listing sessions", nil, []clientv3.Op{clientv3.OpGet(s.key("electors/"), clientv3.WithPrefix())}, nil)
	if err != nil {
		return nil, err
	}
	var sessions []lease.Session
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		if _, over := s.ended(kv.Key); over {
			continue
		}
		session, err := s.decodeSession(kv)
		if err == nil && session.Scope.Overlaps(scope) { // a newer program's stands in its own line
			sessions = append(sessions, session)
		}
	}
	slices.SortFunc(sessions, lease.InLine)
	if p.After != "" {
		i := slices.IndexFunc(sessions, func(l lease.Session) bool { return string(l.ID) == p.After })
		sessions = sessions[i+1:] // one that died since: begin again
	}
	return sessions[:min(limit, len(sessions))], nil
}

// History implements lease.Store: the terms in the record, then the older ones
// beside it.
func (s *Store) History(ctx context.Context, group string, p lease.Page) ([]lease.Term, error) {
	limit, err := p.Size()
	if err := errors.Join(err, lease.CheckGroup(group)); err != nil {
		return nil, err
	}
	before := fence.MaxToken + 1
	if p.After != "" {
		n, err := strconv.ParseUint(p.After, 10, 64)
		if err != nil {
			return nil, &lease.ArgumentError{Field: "after", Value: p.After, Rule: "the token of a term"}
		}
		before = fence.Token(n)
	}
	v, err := s.Read(ctx, group)
	if err != nil {
		return nil, err
	}
	var terms []lease.Term
	for _, t := range slices.Backward(v.Terms) {
		if t.Token < before && len(terms) < limit {
			terms = append(terms, t)
		}
	}
	if len(v.Terms) > 0 {
		before = min(before, v.Terms[0].Token)
	}
	if len(terms) == limit {
		return terms, nil
	}
	resp, err := s.do(ctx, "reading the history of "+group, nil, []clientv3.Op{clientv3.OpGet(
		s.historyKey(group, 0), clientv3.WithRange(s.historyKey(group, before)),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(int64(limit-len(terms))))}, nil)
	if err != nil {
		return nil, err
	}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		var t termJSON
		current := format
		if err := decode(kv, &t, &current); err != nil {
			return nil, err
		}
		terms = append(terms, termIn(t))
	}
	return terms, nil
}
