package load

import (
	"cmp"
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

// route is what all connections know about the leader: one looks for it, the others wait.
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

// seek looks for the leader whenever a connection asks, until ctx ends.
func (r *route) seek(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.want:
		}
		l, err := r.fleet.Leader(ctx)
		if err != nil {
			continue // ctx has ended, or a connection asks again
		}
		if host, err := hostOf(l.URL); err == nil {
			r.set(host, l.ID)
		}
		// A node may say that it leads before it accepts calls.
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

// follow follows the redirect of a node that does not lead, unless the route has changed.
func (r *route) follow(from *target, location []byte, id string) *target {
	u, err := url.Parse(string(location))
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return nil
	}
	if now := r.current(); now != from {
		return now
	}
	return r.set(u.Host, id)
}

// newer waits until another target than from is known. It returns nil when ctx ends or the
// deadline passes.
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
		case <-time.After(time.Second): // seek may have given up: ask again
		}
	}
}

func (r *route) leader() (id string, changes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now != nil {
		id = cmp.Or(r.now.id, r.now.host)
	}
	return id, r.changes
}
