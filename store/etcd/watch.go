package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
)

const (
	// probe is how often a watch asks for a sign of life, deaf how long it goes
	// without one before it moves to another member.
	probe = time.Second
	deaf  = 3 * time.Second
	// forsaken is how long a watch goes without any member before it ends.
	forsaken = 10 * time.Second
	// page bounds what one answer carries of a snapshot.
	page = 2000
)

// picture is what a watch knows: records and living sessions as of one revision.
type picture struct {
	s        *Store
	scope    lease.Scope
	pictured int64 // the revision that was read,
	revision int64 // and the one that is known by now
	records  map[string]lease.Record
	unread   map[string]bool // records that a newer program wrote
	sessions map[lease.SessionID]struct{}
	ended    map[lease.SessionID]lease.Reason // of sessions that were closed
	holds    map[lease.SessionID]map[string]bool
}

// Watch implements lease.Store with one etcd watch over records and sessions. It
// moves to another member when one falls silent, and takes a new picture when
// what it missed was compacted.
func (s *Store) Watch(ctx context.Context, scope lease.Scope) iter.Seq2[lease.View, error] {
	return func(yield func(lease.View, error) bool) {
		if err := scope.Validate(); err != nil {
			yield(lease.View{}, err)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.ctx, cancel)()
		first := true
		for {
			// The watch first, the picture of it after: the other way round etcd would
			// have to read up on what came in between, which it does every 100 ms.
			e, err := s.listen(ctx)
			if err != nil {
				yield(lease.View{}, err)
				return
			}
			p, err := s.picture(ctx, scope)
			if err != nil {
				yield(lease.View{}, err)
				return
			}
			s.report(ctx)
			for _, g := range slices.Sorted(maps.Keys(p.records)) {
				if !yield(p.view(g), nil) {
					return
				}
			}
			if first && !yield(lease.View{}, nil) {
				return
			}
			first = false
			err = p.follow(ctx, e, func(v lease.View) bool { return yield(v, nil) })
			s.report(ctx)
			switch {
			case errors.Is(err, errLeft):
				return
			case errors.Is(err, rpctypes.ErrCompacted):
				continue
			default:
				yield(lease.View{}, err)
				return
			}
		}
	}
}

var (
	errLeft   = errors.New("etcd: nobody listens")
	errSilent = errors.New("etcd: the watch fell silent")
	errBack   = errors.New("etcd: the cluster has lost what it had told us")
)

// picture reads all records in scope and all sessions, at one revision.
func (s *Store) picture(ctx context.Context, scope lease.Scope) (*picture, error) {
	p := &picture{
		s: s, scope: scope,
		records:  map[string]lease.Record{},
		unread:   map[string]bool{},
		sessions: map[lease.SessionID]struct{}{},
		ended:    map[lease.SessionID]lease.Reason{},
		holds:    map[lease.SessionID]map[string]bool{},
	}
	from, to := s.everything()
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(to), clientv3.WithLimit(page), clientv3.WithRev(p.revision)}
		resp, err := s.do(ctx, "reading all groups", nil, []clientv3.Op{clientv3.OpGet(from, opts...)}, nil)
		if err != nil {
			return nil, err
		}
		if p.revision == 0 {
			p.pictured, p.revision = resp.Header.Revision, resp.Header.Revision
		}
		r := resp.Responses[0].GetResponseRange()
		for _, kv := range r.Kvs {
			p.put(kv)
		}
		if !r.More || len(r.Kvs) == 0 {
			p.missing()
			return p, nil
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

// missing notes the groups that are known and have no record any more.
func (p *picture) missing() {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for g := range p.s.known.groups {
		if _, there := p.records[g]; !there && p.scope.Covers(g) {
			p.s.noteLocked(lease.Record{Group: g}, p.pictured)
		}
	}
}

// put takes a key in, and names the group if it is one in scope. What a newer
// program has written is not understood, but it is there: its session lives, and
// its group is led by somebody.
func (p *picture) put(kv *mvccpb.KeyValue) string {
	if strings.HasPrefix(string(kv.Key), p.s.key("electors/")) {
		if id, over := p.s.ended(kv.Key); over {
			var j endedJSON
			_ = decode(kv, &j, &j.Format) // without a reason it reads as expired
			p.ended[id] = lease.Reason(j.Reason)
			return ""
		}
		// Only its id matters here, and a large fleet has many.
		p.sessions[lease.SessionID(strings.TrimPrefix(string(kv.Key), p.s.key("electors/")))] = struct{}{}
		return ""
	}
	group := strings.TrimPrefix(string(kv.Key), p.s.key("election/"))
	if !p.scope.Covers(group) {
		return ""
	}
	rec, err := decodeRecord(kv)
	if err != nil {
		rec = lease.Record{Group: group, Version: uint64(kv.ModRevision)}
	}
	p.unread[group] = err != nil
	if old := p.records[group].Holder; old != "" {
		if delete(p.holds[old], group); len(p.holds[old]) == 0 {
			delete(p.holds, old)
		}
	}
	p.records[group] = rec
	if err == nil {
		p.s.note(rec, max(p.pictured, kv.ModRevision))
	}
	if rec.Holder != "" {
		if p.holds[rec.Holder] == nil {
			p.holds[rec.Holder] = map[string]bool{}
		}
		p.holds[rec.Holder][group] = true
	}
	return group
}

// gone takes a session out and names the groups that are vacant now.
func (p *picture) gone(id lease.SessionID) []string {
	why := cmp.Or(p.ended[id], lease.Expired)
	delete(p.sessions, id)
	groups := slices.Sorted(maps.Keys(p.holds[id]))
	for _, g := range groups {
		rec := p.records[g]
		rec.Terms = closeTerm(rec.Terms, time.Now().UTC(), why)
		p.records[g] = rec
	}
	return groups
}

func (p *picture) view(group string) lease.View {
	rec := p.records[group]
	if _, lives := p.sessions[rec.Holder]; lives && rec.Holder != "" || p.unread[group] {
		return lease.View{Record: rec, State: tenure.Led}
	}
	return lease.View{Record: rec, State: tenure.Vacant}
}

// ear is a watch at one member.
type ear struct {
	client *clientv3.Client
	events clientv3.WatchChan
	close  context.CancelFunc
}

// ear begins a watch that lasts as long as ctx. The member has until the end of
// call to confirm it: the client alone would wait for ever.
func (s *Store) ear(ctx, call context.Context, c *clientv3.Client, opts ...clientv3.OpOption) (*ear, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	giveUp := context.AfterFunc(call, cancel)
	from, to := s.everything()
	events := c.Watch(ctx, from, append(opts, clientv3.WithRange(to), clientv3.WithFragment())...)
	if !giveUp() {
		return nil, call.Err()
	}
	return &ear{client: c, events: events, close: cancel}, nil
}

// listen watches from now on.
func (s *Store) listen(ctx context.Context) (*ear, error) {
	var e *ear
	err := s.each(ctx, "watching", func(call context.Context, c *clientv3.Client) (err error) {
		if e, err = s.ear(ctx, call, c, clientv3.WithCreatedNotify()); err != nil {
			return err
		}
		err = errSilent
		select {
		case r := <-e.events:
			if r.Created && r.Err() == nil {
				return nil
			}
			err = cmp.Or(r.Err(), err)
		case <-call.Done():
			err = call.Err()
		}
		e.close()
		return err
	})
	return e, err
}

// follow keeps the picture up to date, on one member after the other.
func (p *picture) follow(ctx context.Context, e *ear, yield func(lease.View) bool) error {
	p.s.mu.Lock()
	at := p.s.preferred
	p.s.mu.Unlock()
	heard := time.Now()
	var err error
	for {
		if e != nil {
			err = p.hear(ctx, e, &heard, yield)
			e.close()
		}
		m := p.s.members[at%len(p.s.members)]
		switch {
		case ctx.Err() != nil:
			return errLeft
		case errors.Is(err, errLeft), errors.Is(err, errBack), errors.Is(err, rpctypes.ErrCompacted):
			return err
		case time.Since(heard) > forsaken:
			return fmt.Errorf("etcd: watch: no member answered for %v, last %s: %w", forsaken, m.endpoint, err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return errLeft
		}
		at++
		e = nil
		var c *clientv3.Client
		if c, err = p.s.members[at%len(p.s.members)].connect(ctx); err != nil {
			continue
		}
		// It must not have gone back meanwhile: it would be silent until it has
		// caught up, and then tell another story.
		if _, err = p.now(ctx, c); err == nil {
			call, done := context.WithTimeout(ctx, probe)
			e, err = p.s.ear(ctx, call, c, clientv3.WithRev(p.revision+1))
			done()
		}
	}
}

// hear takes in what one member says until it falls silent.
func (p *picture) hear(ctx context.Context, e *ear, heard *time.Time, yield func(lease.View) bool) error {
	ticker := time.NewTicker(probe)
	defer ticker.Stop()
	here := time.Now()
	for {
		select {
		case r, ok := <-e.events:
			if !ok {
				return errSilent
			}
			if err := r.Err(); err != nil {
				if r.CompactRevision != 0 {
					return rpctypes.ErrCompacted
				}
				return err
			}
			here = time.Now()
			*heard = here
			if err := p.apply(r, yield); err != nil {
				return err
			}
		case <-ticker.C:
			if time.Since(here) > deaf {
				if err := p.excuse(ctx, e.client); err != nil {
					return err
				}
				here = time.Now()
				*heard = here
			}
			if err := askProgress(ctx, e.client); err != nil {
				return err
			}
		case <-ctx.Done():
			return errLeft
		}
	}
}

// askProgress wants a sign of life. Where the connection is gone the client does
// not even take the question.
func askProgress(ctx context.Context, c *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), probe)
	defer cancel()
	if err := c.RequestProgress(ctx); err != nil {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return nil
}

// excuse asks the member itself why its watch is silent: etcd gives no sign of life
// to a watch that waits for a revision to come, so there must be none yet.
func (p *picture) excuse(ctx context.Context, c *clientv3.Client) error {
	revision, err := p.now(ctx, c)
	if err == nil && revision > p.revision {
		return errSilent
	}
	return err
}

// now is the cluster's revision, which cannot be below the one we know.
func (p *picture) now(ctx context.Context, c *clientv3.Client) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, probe)
	defer cancel()
	r, err := c.Get(ctx, p.s.key("meta"), clientv3.WithCountOnly())
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w: %w", errSilent, err)
	case r.Header.Revision < p.revision:
		return 0, errBack
	}
	return r.Header.Revision, nil
}

func (p *picture) apply(r clientv3.WatchResponse, yield func(lease.View) bool) error {
	known := p.s.behind()
	for _, e := range r.Events {
		if e.Kv.ModRevision <= p.pictured {
			continue // in it already
		}
		var groups []string
		switch {
		case e.Type == clientv3.EventTypePut:
			if group := p.put(e.Kv); group != "" {
				groups = []string{group}
			}
		default:
			if id, over := p.s.ended(e.Kv.Key); over {
				delete(p.ended, id)
			} else if id, ok := strings.CutPrefix(string(e.Kv.Key), p.s.key("electors/")); ok {
				groups = p.gone(lease.SessionID(id))
			} else {
				p.s.deleted(strings.TrimPrefix(string(e.Kv.Key), p.s.key("election/")), e.Kv.ModRevision)
			}
		}
		for _, g := range groups {
			if !yield(p.view(g)) {
				return errLeft
			}
		}
		p.revision = max(p.revision, e.Kv.ModRevision)
	}
	if r.IsProgressNotify() {
		p.revision = max(p.revision, r.Header.Revision)
	}
	if !known && p.s.behind() {
		return errBack
	}
	return nil
}
