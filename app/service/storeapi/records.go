package storeapi

import (
	"context"
	"sync"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// records keeps what this instance has last shown of each group, so that a call
// which names a version and a token need not read the rest of the record.
type records struct {
	mu    sync.Mutex
	known map[string]lease.Record
}

// maxRecords bounds the memory; what was dropped is read again.
const maxRecords = 1 << 14

func newRecords() records { return records{known: make(map[string]lease.Record)} }

func (k *records) put(r lease.Record) {
	if r.Version == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	old, ok := k.known[r.Group]
	// Of one version, the view that knows how its term ended says more.
	if ok && old.Version == r.Version && ended(old) && !ended(r) {
		return
	}
	if !ok && len(k.known) >= maxRecords {
		for group := range k.known {
			delete(k.known, group)
			break
		}
	}
	k.known[r.Group] = r
}

func ended(r lease.Record) bool {
	return len(r.Terms) > 0 && !r.Terms[len(r.Terms)-1].End.IsZero()
}

func (k *records) get(s wire.Seen) (lease.Record, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, ok := k.known[s.Group]
	return r, ok && same(r, s)
}

// same compares the token as well: after a restore an engine may number its
// versions again.
func same(r lease.Record, s wire.Seen) bool { return r.Version == s.Version && r.Token == s.Token }

// whole returns the records that a caller has seen, as the engine has them. If one
// is not as seen the error is a ConflictError that shows all that stand in the way:
// those too that somebody leads, unless they are the caller's to give up.
func (a *API) whole(ctx context.Context, seen []wire.Seen, led bool) ([]lease.Record, error) {
	out := make([]lease.Record, len(seen))
	var missing bool
	for i, s := range seen {
		if s.Version == 0 {
			out[i] = lease.Record{Group: s.Group} // there is nothing to know, and the engine compares
			continue
		}
		var ok bool
		if out[i], ok = a.records.get(s); !ok {
			missing = true
		}
	}
	if !missing {
		return out, nil
	}
	views, err := a.views(ctx, seen)
	if err != nil {
		return nil, before(err)
	}
	moved := false
	var current []lease.View
	for i, s := range seen {
		as := s.Version == 0 && views[i].Version == 0 || same(views[i].Record, s)
		moved = moved || !as
		if !as || !led && views[i].State == tenure.Led {
			current = append(current, views[i])
		}
		out[i] = views[i].Record
	}
	if moved {
		return nil, &lease.ConflictError{Current: current}
	}
	return out, nil
}

// views reads the groups: a batch with one call.
func (a *API) views(ctx context.Context, seen []wire.Seen) ([]lease.View, error) {
	if len(seen) == 1 {
		v, err := a.cfg.Store.Read(ctx, seen[0].Group)
		a.records.put(v.Record)
		return []lease.View{v}, err
	}
	var scope lease.Scope
	for _, s := range seen {
		scope = append(scope, s.Group)
	}
	listed, err := a.cfg.Store.Groups(ctx, scope, lease.Page{})
	if err != nil {
		return nil, err
	}
	by := make(map[string]lease.View, len(listed))
	for _, v := range listed {
		by[v.Group] = v
		a.records.put(v.Record)
	}
	out := make([]lease.View, len(seen))
	for i, s := range seen {
		v, ok := by[s.Group]
		if !ok {
			v = lease.View{Record: lease.Record{Group: s.Group}, State: tenure.Vacant}
		}
		out[i] = v
	}
	return out, nil
}
