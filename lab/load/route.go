package load

import (
	"context"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/tenurehq/tenure/reference/client"
)

// target is the node that all connections call.
type target struct {
	host string
	id   string
	req  []byte
}

// route is what the connections know together about where the leader is: one looks,
// the others wait.
type route struct {
	fleet *client.Client
	n     int
	want  chan struct{}

	mu      sync.Mutex
	now     *target
	changed chan struct{} // closed and replaced with now
	changes int64
}

func newRoute(fleet *client.Client, n int) *route {
	return &route{fleet: fleet, n: n, want: make(chan struct{}, 1), changed: make(chan struct{})}
}

// seek looks for the leader whenever somebody asks, until ctx ends.
func (r *route) seek(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.want:
		}
		l, err := r.fleet.Leader(ctx)
		if err != nil {
			continue // ctx ended, or its patience did and somebody asks again
		}
		if host, err := hostOf(l.URL); err == nil {
			r.set(host, l.ID)
		}
		// A node may say that it leads before it answers calls.
		select {
		case <-ctx.Done():
			return
		case <-time.After(5*time.Millisecond + rand.N(10*time.Millisecond)):
		}
	}
}

func (r *route) set(host, id string) *target {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now != nil && r.now.host != host {
		r.changes++
	}
	if id == "" && r.now != nil && r.now.host == host {
		id = r.now.id
	}
	r.now = &target{host: host, id: id, req: request(host, r.n)}
	close(r.changed)
	r.changed = make(chan struct{})
	return r.now
}

// current is the node to call, nil if none is known yet.
func (r *route) current() *target {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// follow goes where a node that does not lead points to, unless others went on already.
func (r *route) follow(from *target, location []byte, id string) *target {
	u, err := url.Parse(string(location))
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return nil
	}
	r.mu.Lock()
	now := r.now
	r.mu.Unlock()
	if now != from {
		return now
	}
	return r.set(u.Host, id)
}

// newer waits until another target than from is known. It is nil when ctx ended or the
// deadline passed.
func (r *route) newer(ctx context.Context, from *target, deadline <-chan time.Time) *target {
	r.mu.Lock()
	now, changed := r.now, r.changed
	r.mu.Unlock()
	if now != from {
		return now
	}
	for {
		select {
		case r.want <- struct{}{}:
		default:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-deadline:
			return nil
		case <-changed:
			return r.current()
		case <-time.After(time.Second): // the seeker's patience ended: ask again
		}
	}
}

func (r *route) leader() (id string, changes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now != nil {
		id = r.now.id
		if id == "" {
			id = r.now.host
		}
	}
	return id, r.changes
}
