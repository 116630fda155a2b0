package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// requestJSON is a request as it is stored, on an etcd lease of its own.
type requestJSON struct {
	Format   int         `json:"format"`
	ID       string      `json:"id"`
	Verb     string      `json:"verb"`
	Group    string      `json:"group"`
	Token    fence.Token `json:"token,omitempty"`
	To       string      `json:"to,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	CoolDown int64       `json:"cool_down_ms,omitempty"`
	TTL      int64       `json:"ttl_ms"`
	Outcome  string      `json:"outcome,omitempty"`
	Detail   string      `json:"detail,omitempty"`
}

func (j *requestJSON) request() lease.Request {
	return lease.Request{
		ID: j.ID, Verb: lease.Verb(j.Verb), Group: j.Group, Token: j.Token, To: j.To, Reason: j.Reason,
		CoolDown: time.Duration(j.CoolDown) * time.Millisecond, TTL: time.Duration(j.TTL) * time.Millisecond,
	}
}

// waiting lists the requests that have no answer, oldest first.
func waiting(kvs []*mvccpb.KeyValue) []lease.Request {
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	var requests []lease.Request
	for _, kv := range kvs {
		var j requestJSON
		// One that cannot be read, a newer program's, must not cost the beat.
		if err := decode(kv, &j, &j.Format); err == nil && j.Outcome == "" {
			requests = append(requests, j.request())
		}
	}
	return requests
}

func (s *Store) requestKey(id lease.SessionID, request string) string {
	return s.key("request", string(id), request)
}

// Ask implements lease.Store.
func (s *Store) Ask(ctx context.Context, id lease.SessionID, r lease.Request) error {
	if err := r.Validate(); err != nil {
		return err
	}
	resp, err := s.do(ctx, "asking a session", nil, []clientv3.Op{
		clientv3.OpGet(s.sessionKey(id), clientv3.WithKeysOnly()),
		clientv3.OpGet(s.requestKey(id, ""), clientv3.WithPrefix()),
	}, nil)
	if err != nil {
		return err
	}
	if resp.Responses[0].GetResponseRange().Count == 0 {
		return dead(id)
	}
	key := s.requestKey(id, r.ID)
	kvs := resp.Responses[1].GetResponseRange().Kvs
	if slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == key }) {
		return nil
	}
	open := waiting(kvs)
	if len(open) >= lease.MaxRequests {
		return fmt.Errorf("etcd: %d requests wait for session %q: %w", len(open), id, lease.ErrBusy)
	}
	lid := newLease()
	if _, _, err := s.grantLease(ctx, "asking a session", lid, r.TTL); err != nil {
		return err
	}
	value := encode(requestJSON{
		Format: format, ID: r.ID, Verb: string(r.Verb), Group: r.Group, Token: r.Token, To: r.To, Reason: r.Reason,
		CoolDown: r.CoolDown.Milliseconds(), TTL: r.TTL.Milliseconds(),
	})
	_, err = s.do(ctx, "asking a session",
		[]clientv3.Cmp{s.lives(id), clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
		[]clientv3.Op{clientv3.OpPut(key, value, clientv3.WithLease(lid))},
		[]clientv3.Op{clientv3.OpGet(s.sessionKey(id), clientv3.WithKeysOnly())})
	var refused *txnError
	if errors.As(err, &refused) {
		s.revoke(lid) // nobody needs it
		if refused.resp.Responses[0].GetResponseRange().Count == 0 {
			return dead(id)
		}
		return nil // asked already
	}
	return err
}

// Answer implements lease.Store.
func (s *Store) Answer(ctx context.Context, id lease.SessionID, request string, a lease.Answer) error {
	if err := a.Validate(); err != nil {
		return err
	}
	kv, j, err := s.asked(ctx, id, request)
	if err != nil {
		return err
	}
	if j.Outcome != "" {
		return nil
	}
	j.Outcome, j.Detail = string(a.Outcome), a.Detail
	key := string(kv.Key)
	_, err = s.do(ctx, "answering a request",
		[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)},
		[]clientv3.Op{clientv3.OpPut(key, encode(j), clientv3.WithLease(clientv3.LeaseID(kv.Lease)))}, nil)
	var changed *txnError
	if errors.As(err, &changed) {
		_, j, err := s.asked(ctx, id, request)
		if err == nil && j.Outcome == "" {
			err = errors.New("etcd: the request changed meanwhile")
		}
		return err
	}
	return err
}

// Answered implements lease.Store.
func (s *Store) Answered(ctx context.Context, id lease.SessionID, request string) (lease.Answer, error) {
	_, j, err := s.asked(ctx, id, request)
	if err != nil {
		return lease.Answer{}, err
	}
	return lease.Answer{Outcome: lease.Outcome(j.Outcome), Detail: j.Detail}, nil
}

func (s *Store) asked(ctx context.Context, id lease.SessionID, request string) (*mvccpb.KeyValue, *requestJSON, error) {
	if err := lease.CheckRequestID(request); err != nil {
		return nil, nil, err
	}
	resp, err := s.do(ctx, "reading a request", nil, []clientv3.Op{
		clientv3.OpGet(s.requestKey(id, request)),
		clientv3.OpGet(s.sessionKey(id), clientv3.WithKeysOnly()),
	}, nil)
	if err != nil {
		return nil, nil, err
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		if resp.Responses[1].GetResponseRange().Count == 0 {
			return nil, nil, dead(id)
		}
		return nil, nil, fmt.Errorf("etcd: request %q of session %q: %w", request, id, lease.ErrNotFound)
	}
	var j requestJSON
	err = decode(kvs[0], &j, &j.Format)
	return kvs[0], &j, err
}

// attributesJSON is what is attached to a name.
type attributesJSON struct {
	Format int               `json:"format"`
	Values map[string]string `json:"values"`
}

// Attributes implements lease.Store.
func (s *Store) Attributes(ctx context.Context, name string) (lease.Attributes, error) {
	if err := (lease.Attributes{Name: name}).Validate(); err != nil {
		return lease.Attributes{}, err
	}
	resp, err := s.do(ctx, "reading attributes", nil, []clientv3.Op{clientv3.OpGet(s.key("attribute", name))}, nil)
	if err != nil {
		return lease.Attributes{}, err
	}
	return attributesOf(name, resp.Responses[0].GetResponseRange().Kvs)
}

func attributesOf(name string, kvs []*mvccpb.KeyValue) (lease.Attributes, error) {
	a := lease.Attributes{Name: name}
	if len(kvs) == 0 {
		return a, nil
	}
	var j attributesJSON
	if err := decode(kvs[0], &j, &j.Format); err != nil {
		return a, err
	}
	a.Version, a.Values = uint64(kvs[0].ModRevision), j.Values
	return a, nil
}

// SetAttributes implements lease.Store.
func (s *Store) SetAttributes(ctx context.Context, seen lease.Attributes) (lease.Attributes, error) {
	if err := seen.Validate(); err != nil {
		return lease.Attributes{}, err
	}
	values := map[string]string{}
	for k, v := range seen.Values {
		if v != "" {
			values[k] = v
		}
	}
	key := s.key("attribute", seen.Name)
	resp, err := s.do(ctx, "writing attributes",
		[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", int64(seen.Version))},
		[]clientv3.Op{clientv3.OpPut(key, encode(attributesJSON{Format: format, Values: values}))}, nil)
	var changed *txnError
	if errors.As(err, &changed) {
		return lease.Attributes{}, &lease.ConflictError{}
	}
	if err != nil {
		return lease.Attributes{}, err
	}
	return lease.Attributes{Name: seen.Name, Version: uint64(resp.Header.Revision), Values: values}, nil
}
