package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// Read implements lease.Store. The record and whether its holder lives come from
// one transaction: the holder that was seen last is looked up with the record,
// and if it is another by now, again.
func (s *Store) Read(ctx context.Context, group string) (lease.View, error) {
	if err := lease.CheckGroup(group); err != nil {
		return lease.View{}, err
	}
	holder := s.last(group).holder
	for {
		resp, err := s.do(ctx, "reading group "+group, nil,
			[]clientv3.Op{clientv3.OpGet(s.recordKey(group)), clientv3.OpGet(s.sessionKey(holder), clientv3.WithKeysOnly())}, nil)
		if err != nil {
			return lease.View{}, err
		}
		rec, err := recordOf(group, resp.Responses[0].GetResponseRange().Kvs)
		if err != nil {
			return lease.View{}, err
		}
		s.note(rec, resp.Header.Revision)
		switch {
		case rec.Holder == "":
			return lease.View{Record: rec, State: tenure.Vacant}, nil
		case rec.Holder != holder:
			holder = rec.Holder
		case resp.Responses[1].GetResponseRange().Count == 0:
			rec.Terms = closeTerm(rec.Terms, time.Now().UTC(), lease.Expired)
			return lease.View{Record: rec, State: tenure.Vacant}, nil
		default:
			return lease.View{Record: rec, State: tenure.Led}, nil
		}
	}
}

func recordOf(group string, kvs []*mvccpb.KeyValue) (lease.Record, error) {
	if len(kvs) == 0 {
		return lease.Record{Group: group}, nil
	}
	return decodeRecord(kvs[0])
}

// grant is the record after a grant to the session, and what falls out of it.
func (s *Store) grant(seen lease.Record, to lease.Session, epoch uint64, why lease.Reason) (lease.Record, []clientv3.Op, error) {
	token, err := seen.Token.Next(epoch)
	if err != nil {
		return lease.Record{}, nil, fmt.Errorf("etcd: group %q: %w: %w", seen.Group, lease.ErrInvalid, err)
	}
	now := time.Now().UTC()
	rec := lease.Record{Group: seen.Group, Token: token, Holder: to.ID, Candidate: to.Candidate}
	rec.Terms = append(slices.Clone(closeTerm(seen.Terms, now, why)), lease.Term{Token: token, Candidate: to.Candidate.ID, Session: to.ID, Begin: now})
	var old []clientv3.Op
	for len(rec.Terms) > lease.TermsKept {
		t := rec.Terms[0]
		rec.Terms = rec.Terms[1:]
		old = append(old, clientv3.OpPut(s.historyKey(rec.Group, t.Token), encode(termOut(t))))
		if t.Token.Counter()%64 == 0 && t.Token > historyMost {
			old = append(old, clientv3.OpDelete(s.historyKey(rec.Group, 0), clientv3.WithRange(s.historyKey(rec.Group, t.Token-historyMost))))
		}
	}
	if seen.Version == 0 || seen.Token.Epoch() < epoch {
		old = append(old, clientv3.OpPut(s.grantedKey(rec.Group), encode(grantedJSON{Format: format, Deployment: to.Deployment})))
	}
	return rec, append(old, clientv3.OpPut(s.recordKey(rec.Group), encodeRecord(rec))), nil
}

// historyMost bounds the terms of a group that are kept beside its record.
const historyMost = 4 * lease.HistoryKept

func (s *Store) historyKey(group string, t fence.Token) string {
	return s.key("history", group, fmt.Sprintf("%016x", uint64(t)))
}

// Acquire implements lease.Store with one transaction: the records are as seen,
// their holders' sessions are gone, ours exists, and the epoch has not changed. A group
// without a record was not granted in this epoch: else its record was deleted.
func (s *Store) Acquire(ctx context.Context, id lease.SessionID, seen ...lease.Record) ([]lease.Record, error) {
	if err := lease.CheckBatch(s.Limits(), seen); err != nil {
		return nil, err
	}
	for range 3 {
		m, err := s.fresh(ctx)
		if err != nil {
			return nil, err
		}
		session, err := s.session(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, r := range seen {
			if r.Version == 0 && s.last(r.Group).version != 0 {
				// The caller is late, or the record is gone: reading it tells.
				if _, err := s.Read(ctx, r.Group); err != nil {
					return nil, err
				}
			}
		}
		if s.behind() {
			continue
		}
		cmps := []clientv3.Cmp{s.lives(id), clientv3.Compare(clientv3.ModRevision(s.key("meta")), "=", m.modified)}
		ops, gets := []clientv3.Op(nil), []clientv3.Op{clientv3.OpGet(s.sessionKey(id), clientv3.WithKeysOnly()), clientv3.OpGet(s.key("meta"))}
		out := make([]lease.Record, len(seen))
		var holders []lease.SessionID
		var first []lease.Record
		for i, r := range seen {
			rec, puts, err := s.grant(r, session, m.Epoch, lease.Expired)
			if err != nil {
				return nil, err
			}
			out[i] = rec
			ops = append(ops, puts...)
			cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(s.recordKey(r.Group)), "=", int64(r.Version)))
			gets = append(gets, clientv3.OpGet(s.recordKey(r.Group)))
			if r.Version == 0 {
				first = append(first, r)
				cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(s.grantedKey(r.Group)), "<", m.modified))
			}
			if r.Holder != "" && !slices.Contains(holders, r.Holder) {
				holders = append(holders, r.Holder)
				cmps = append(cmps, s.died(r.Holder))
			}
		}
		for _, h := range holders {
			gets = append(gets, clientv3.OpGet(s.sessionKey(h), clientv3.WithKeysOnly()))
		}
		for _, r := range first {
			gets = append(gets, clientv3.OpGet(s.grantedKey(r.Group), clientv3.WithKeysOnly()))
		}
		resp, err := s.do(ctx, "acquiring "+seen[0].Group, cmps, ops, gets)
		var refused *txnError
		switch {
		case errors.As(err, &refused):
			range0 := resp.Responses[0].GetResponseRange()
			if range0.Count == 0 {
				return nil, dead(id)
			}
			if kvs := resp.Responses[1].GetResponseRange().Kvs; len(kvs) == 0 || kvs[0].ModRevision != m.modified {
				s.forgetMeta()
				continue
			}
			if s.missing(m, seen, first, resp) {
				continue
			}
			return nil, s.conflict(ctx, seen, holders, resp)
		case err != nil:
			return nil, err
		case s.behind():
			return nil, errBehind
		}
		for i := range out {
			out[i].Version = uint64(resp.Header.Revision)
			s.note(out[i], resp.Header.Revision)
		}
		return out, nil
	}
	return nil, errors.New("etcd: the deployment's record keeps changing")
}

// missing reports whether a group that was granted in this epoch has no record.
func (s *Store) missing(m *meta, seen, first []lease.Record, resp *clientv3.TxnResponse) bool {
	granted := resp.Responses[len(resp.Responses)-len(first):]
	for i, r := range first {
		at := slices.IndexFunc(seen, func(s lease.Record) bool { return s.Group == r.Group })
		kvs := granted[i].GetResponseRange().Kvs
		if len(kvs) > 0 && kvs[0].ModRevision >= m.modified && resp.Responses[2+at].GetResponseRange().Count == 0 {
			s.deleted(r.Group, resp.Header.Revision)
		}
	}
	return s.behind()
}

// conflict shows which records were not as seen, or not vacant. Only those that
// have changed are read again.
func (s *Store) conflict(ctx context.Context, seen []lease.Record, holders []lease.SessionID, resp *clientv3.TxnResponse) error {
	answers := resp.Responses[2:]
	lives := map[lease.SessionID]bool{}
	for i, h := range holders {
		lives[h] = answers[len(seen)+i].GetResponseRange().Count > 0
	}
	conflict := &lease.ConflictError{}
	for i, r := range seen {
		rec, err := recordOf(r.Group, answers[i].GetResponseRange().Kvs)
		if err != nil {
			return err
		}
		v := lease.View{Record: rec, State: tenure.Led}
		switch {
		case rec.Version != r.Version:
			if v, err = s.Read(ctx, r.Group); err != nil {
				return conflict // what is known so far
			}
		case !lives[rec.Holder]:
			continue // as seen, and vacant
		}
		conflict.Current = append(conflict.Current, v)
	}
	return conflict
}

// Release implements lease.Store.
func (s *Store) Release(ctx context.Context, id lease.SessionID, held lease.Record, to lease.SessionID, why lease.Reason) (lease.Record, error) {
	if err := lease.CheckGroup(held.Group); err != nil {
		return lease.Record{}, err
	}
	key := s.recordKey(held.Group)
	cmps := []clientv3.Cmp{s.lives(id), clientv3.Compare(clientv3.ModRevision(key), "=", int64(held.Version))}
	rec := held
	rec.Holder = ""
	rec.Terms = closeTerm(held.Terms, time.Now().UTC(), why)
	ops := []clientv3.Op{clientv3.OpPut(key, encodeRecord(rec))}
	gets := []clientv3.Op{clientv3.OpGet(s.sessionKey(id), clientv3.WithKeysOnly()), clientv3.OpGet(key)}
	if held.Holder != id {
		return lease.Record{}, s.notHeld(ctx, id, held)
	}
	if to != "" {
		m, err := s.fresh(ctx)
		if err != nil {
			return lease.Record{}, err
		}
		successor, err := s.session(ctx, to)
		if err != nil && !errors.Is(err, lease.ErrSessionDead) {
			return lease.Record{}, err
		}
		if err != nil || to == id || !successor.Scope.Covers(held.Group) {
			return lease.Record{}, fmt.Errorf("etcd: session %q cannot take group %q: %w", to, held.Group, lease.ErrSuccessor)
		}
		var puts []clientv3.Op
		if rec, puts, err = s.grant(held, successor, m.Epoch, why); err != nil {
			return lease.Record{}, err
		}
		ops = puts
		cmps = append(cmps, s.lives(to), clientv3.Compare(clientv3.ModRevision(s.key("meta")), "=", m.modified))
		gets = append(gets, clientv3.OpGet(s.sessionKey(to), clientv3.WithKeysOnly()))
	}
	resp, err := s.do(ctx, "releasing "+held.Group, cmps, ops, gets)
	var refused *txnError
	switch {
	case errors.As(err, &refused):
		answers := resp.Responses
		now, err := recordOf(held.Group, answers[1].GetResponseRange().Kvs)
		switch {
		case err != nil:
			return lease.Record{}, err
		case answers[0].GetResponseRange().Count == 0:
			return lease.Record{}, dead(id)
		case now.Version != held.Version:
			return lease.Record{}, s.moved(ctx, held.Group)
		case to != "" && answers[2].GetResponseRange().Count == 0:
			return lease.Record{}, fmt.Errorf("etcd: session %q cannot take group %q: %w", to, held.Group, lease.ErrSuccessor)
		}
		s.forgetMeta()
		return lease.Record{}, errors.New("etcd: the epoch was raised meanwhile")
	case err != nil:
		return lease.Record{}, err
	case to != "" && s.behind():
		return lease.Record{}, errBehind
	}
	rec.Version = uint64(resp.Header.Revision)
	s.note(rec, resp.Header.Revision)
	return rec, nil
}

// notHeld is the answer to a release of what the session does not hold.
func (s *Store) notHeld(ctx context.Context, id lease.SessionID, held lease.Record) error {
	if _, err := s.living(ctx, id); err != nil {
		return err
	}
	return s.moved(ctx, held.Group)
}

func (s *Store) moved(ctx context.Context, group string) error {
	v, err := s.Read(ctx, group)
	if err != nil {
		return &lease.ConflictError{}
	}
	return &lease.ConflictError{Current: []lease.View{v}}
}
