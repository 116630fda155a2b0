package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/policy"
	"github.com/tenurehq/tenure/store"
)

// requestsKept bounds the stored requests of one session, waiting and answered.
const requestsKept = 4 * store.MaxRequests

// requests decodes the requests to a session, without those that have expired. Each process
// counts the TTL of a request from when it first saw it, because clocks differ.
func (s *Store) requests(id store.SessionID, i Item) ([]requestJSON, error) {
	if i.Version == 0 {
		return nil, nil
	}
	var j requestsJSON
	if err := decode(i, &j); err != nil {
		return nil, err
	}
	now := s.cfg.Clock.Now()
	return slices.DeleteFunc(j.Requests, func(r requestJSON) bool {
		key := string(id) + "/" + r.ID
		first, ok := s.requestSeen.get(key)
		if !ok {
			first = now
			s.requestSeen.put(key, now)
		}
		return now.Sub(first) >= time.Duration(r.TTL)*time.Millisecond
	}), nil
}

// waiting returns the requests without an answer, oldest first. It ignores errors, because
// requests that cannot be decoded must not make the keep-alive fail.
func (s *Store) waiting(id store.SessionID, i Item) []store.Request {
	all, _ := s.requests(id, i)
	var open []store.Request
	for _, r := range all {
		if r.Outcome == "" {
			open = append(open, r.request())
		}
	}
	return open
}

var errRequests = errors.New("kv: the requests of the session keep changing")

// change edits the requests of a living session.
func (s *Store) change(ctx context.Context, id store.SessionID, edit func([]requestJSON) ([]requestJSON, error)) error {
	for range 10 {
		items, err := s.read(ctx, beatKey(id), requestsKey(id))
		if err != nil {
			return err
		}
		if items[0].Version == 0 {
			return dead(id)
		}
		all, err := s.requests(id, items[1])
		if err != nil {
			return err
		}
		next, err := edit(all)
		if err != nil || next == nil {
			return err
		}
		r, err := s.run(ctx, plan{
			guard: []Cond{{beatKey(id), Any}},
			decide: []step{{Cond{requestsKey(id), items[1].Version}, Write{
				Key: requestsKey(id), Value: encode(requestsJSON{Format: Format, Requests: next}), Quiet: true,
			}}},
		})
		if err != nil || r.OK {
			return err
		}
	}
	return errRequests
}

// Ask implements store.Store.
func (s *Store) Ask(ctx context.Context, id store.SessionID, r store.Request) error {
	if err := r.Validate(); err != nil {
		return err
	}
	return s.change(ctx, id, func(all []requestJSON) ([]requestJSON, error) {
		open := 0
		for _, have := range all {
			if have.ID == r.ID {
				return nil, nil
			}
			if have.Outcome == "" {
				open++
			}
		}
		if open >= store.MaxRequests {
			return nil, fmt.Errorf("kv: %d requests wait for session %q: %w", open, id, store.ErrBusy)
		}
		if len(all) >= requestsKept {
			i := slices.IndexFunc(all, func(r requestJSON) bool { return r.Outcome != "" })
			all = slices.Delete(all, i, i+1)
		}
		s.requestSeen.put(string(id)+"/"+r.ID, s.cfg.Clock.Now())
		return append(all, requestOf(r)), nil
	})
}

// Answer implements store.Store.
func (s *Store) Answer(ctx context.Context, id store.SessionID, request string, a store.Answer) error {
	if err := a.Validate(); err != nil {
		return err
	}
	return s.change(ctx, id, func(all []requestJSON) ([]requestJSON, error) {
		i := slices.IndexFunc(all, func(r requestJSON) bool { return r.ID == request })
		if i < 0 {
			return nil, notAsked(id, request)
		}
		if all[i].Outcome != "" {
			return nil, nil
		}
		all[i].Outcome, all[i].Detail = string(a.Outcome), a.Detail
		return all, nil
	})
}

// Answered implements store.Store. An answer outlives its session until it expires.
func (s *Store) Answered(ctx context.Context, id store.SessionID, request string) (store.Answer, error) {
	items, err := s.read(ctx, beatKey(id), requestsKey(id))
	if err != nil {
		return store.Answer{}, err
	}
	all, err := s.requests(id, items[1])
	if err != nil {
		return store.Answer{}, err
	}
	for _, r := range all {
		if r.ID == request && (r.Outcome != "" || items[0].Version != 0) {
			return store.Answer{Outcome: store.Outcome(r.Outcome), Detail: r.Detail}, nil
		}
	}
	if items[0].Version == 0 {
		return store.Answer{}, dead(id)
	}
	return store.Answer{}, notAsked(id, request)
}

func notAsked(id store.SessionID, request string) error {
	return fmt.Errorf("kv: request %q of session %q: %w", request, id, store.ErrNotFound)
}

// Attributes implements store.Store.
func (s *Store) Attributes(ctx context.Context, name string) (store.Attributes, error) {
	if err := (store.Attributes{Name: name}).Validate(); err != nil {
		return store.Attributes{}, err
	}
	items, err := s.read(ctx, attributesAt+name)
	if err != nil {
		return store.Attributes{Name: name}, err
	}
	return decodeAttributes(items[0])
}

func decodeAttributes(i Item) (store.Attributes, error) {
	a := store.Attributes{Name: strings.TrimPrefix(i.Key, attributesAt)}
	if i.Version == 0 {
		return a, nil
	}
	var j attributesJSON
	err := decode(i, &j)
	a.Version, a.Values = i.Version, j.Values
	return a, err
}

// ListAttributes implements store.Store.
func (s *Store) ListAttributes(ctx context.Context, prefix string, p store.Page) ([]store.Attributes, error) {
	limit, err := p.Size()
	if err := errors.Join(err, store.Attributes{Name: prefix}.Validate()); err != nil {
		return nil, err
	}
	if s.ctx.Err() != nil {
		return nil, ErrClosed
	}
	after := ""
	if p.After > prefix {
		after = attributesAt + p.After
	}
	sent := s.sends()
	items, err := s.driver.List(ctx, attributesAt+prefix, after, limit)
	if err != nil {
		return nil, err
	}
	s.readSent(sent)
	all := make([]store.Attributes, len(items))
	for i, item := range items {
		if all[i], err = decodeAttributes(item); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Rules implements store.Ruled. It reads the version first. If a rule changes before it is read,
// the version is outdated, and nothing is granted under it.
func (s *Store) Rules(ctx context.Context, names ...string) (uint64, []store.Attributes, error) {
	keys := []string{rulesKey}
	for _, name := range names {
		if err := (store.Attributes{Name: name}).Validate(); err != nil {
			return 0, nil, err
		}
		keys = append(keys, attributesAt+name)
	}
	items, err := s.read(ctx, keys...)
	if err != nil {
		return 0, nil, err
	}
	rules := make([]store.Attributes, len(names))
	for i := range names {
		if rules[i], err = decodeAttributes(items[1+i]); err != nil {
			return 0, nil, err
		}
	}
	return items[0].Version, rules, nil
}

// Under implements store.Ruled.
func (s *Store) Under(version uint64) store.Store { return under{s, []Cond{{rulesKey, version}}} }

// under is a store that opens sessions and grants only while the rules have a given version.
type under struct {
	*Store
	rules []Cond
}

func (u under) Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o store.OpenOptions) (store.Session, error) {
	return u.begin(ctx, u.rules, c, ttl, o)
}

func (u under) Acquire(ctx context.Context, id store.SessionID, seen ...store.Record) ([]store.Record, error) {
	return u.acquire(ctx, u.rules, id, seen)
}

func (u under) Release(ctx context.Context, id, to store.SessionID, why store.Reason, held ...store.Record) ([]store.Record, error) {
	return u.release(ctx, u.rules, id, to, why, held)
}

// SetAttributes implements store.Store. A rule and the version of the rules change together. If
// this takes two steps, the rule is written first. Once the call has returned, nobody can grant
// under the version from before.
func (s *Store) SetAttributes(ctx context.Context, seen store.Attributes) (store.Attributes, error) {
	if err := seen.Validate(); err != nil {
		return store.Attributes{}, err
	}
	next := store.Attributes{Name: seen.Name, Values: map[string]string{}}
	for k, v := range seen.Values {
		if v != "" {
			next.Values[k] = v
		}
	}
	key := attributesAt + seen.Name
	rule := policy.IsRule(seen.Name)
	write := Write{Key: key, Quiet: true}
	if rule || len(next.Values) > 0 {
		write.Value = encode(attributesJSON{Format: Format, Values: next.Values})
	}
	t := Txn{If: []Cond{{key, seen.Version}}, Then: []Write{write}}
	raise := Write{Key: rulesKey, Value: []byte("{}"), Quiet: true}
	if rule && s.caps.Keys > 1 {
		t.Then = append(t.Then, raise)
	}
	r, err := s.commit(ctx, t)
	if err != nil {
		return store.Attributes{}, err
	}
	if !r.OK {
		return store.Attributes{}, fmt.Errorf("kv: attributes of %q have changed: %w", seen.Name, &store.ConflictError{})
	}
	if rule && s.caps.Keys == 1 {
		if _, err := s.commit(ctx, Txn{Then: []Write{raise}}); err != nil {
			return store.Attributes{}, err
		}
	}
	if write.Value != nil {
		next.Version = r.Versions[0]
	}
	return next, nil
}
