package enginetest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// Proxy is between a client and a member, and can cut and delay their connections. Use its
// Endpoint instead of the member's.
//
// A cut is silent: connections stay open, new ones are accepted, and bytes are held back. Heal
// delivers them, as TCP does when it retransmits.
type Proxy struct {
	t      testing.TB
	addr   string
	target string
	ways   [2]counters
	// running counts the goroutines; those of a link are added by its acceptor.
	running sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when what follows changes
	cut     [2]bool
	delay   [2]time.Duration
	refuse  bool
	closed  bool
	l       net.Listener // nil while connections are refused
	links   map[*link]struct{}
}

type counters struct{ passed, held atomic.Int64 }

// Direction is a direction through a Proxy.
type Direction int

const (
	// Up is from the client to the member.
	Up Direction = iota
	// Down is from the member to the client.
	Down
)

// NewProxy listens on loopback and forwards to target, a host:port. It is closed
// when the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, target: target, changed: make(chan struct{}), links: map[*link]struct{}{}}
	ports, err := child.FreePorts(1)
	if err == nil {
		p.addr = ports[0]
		err = p.listen()
	}
	if err != nil {
		t.Fatalf("proxy to %s: %v", target, err)
	}
	t.Cleanup(p.close)
	return p
}

// Proxy puts a proxy in front of the member's client address.
func (m *Member) Proxy() *Proxy {
	m.t.Helper()
	return NewProxy(m.t, m.client)
}

// Addr returns host:port of the proxy.
func (p *Proxy) Addr() string { return p.addr }

// Endpoint returns the URL of the proxy.
func (p *Proxy) Endpoint() string { return "http://" + p.addr }

// Cut holds everything back in both directions.
func (p *Proxy) Cut() { p.set(func() { p.cut = [2]bool{true, true} }) }

// CutOneWay holds everything back in one direction.
func (p *Proxy) CutOneWay(d Direction) { p.set(func() { p.cut[d] = true }) }

// Delay adds a delay in one direction. The order is kept.
func (p *Proxy) Delay(d Direction, by time.Duration) { p.set(func() { p.delay[d] = by }) }

// Break resets the open connections and accepts new ones.
func (p *Proxy) Break() { p.set(p.breakLinks) }

// Redirect resets the open connections and forwards new ones to another target.
func (p *Proxy) Redirect(target string) {
	p.set(func() {
		p.target = target
		p.breakLinks()
	})
}

// Refuse resets the open connections and refuses new ones.
func (p *Proxy) Refuse() {
	p.set(func() {
		p.refuse = true
		p.unlisten()
		p.breakLinks()
	})
}

// Heal ends every fault.
func (p *Proxy) Heal() {
	p.t.Helper()
	var err error
	p.set(func() {
		p.cut, p.delay, p.refuse = [2]bool{}, [2]time.Duration{}, false
		if p.l == nil && !p.closed {
			err = p.listen()
		}
	})
	if err != nil {
		p.t.Fatalf("heal the proxy to %s: %v", p.target, err)
	}
}

// Passed returns how many bytes have passed in a direction.
func (p *Proxy) Passed(d Direction) int64 { return p.ways[d].passed.Load() }

// Held returns how many bytes are held back in a direction. Above zero the fault has had an
// effect.
func (p *Proxy) Held(d Direction) int64 { return p.ways[d].held.Load() }

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) close() {
	p.set(func() {
		p.closed = true
		p.unlisten()
		p.breakLinks()
	})
	p.running.Wait()
}

func (p *Proxy) listen() error {
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.l = l
	p.running.Go(func() { p.accept(l) })
	return nil
}

func (p *Proxy) unlisten() {
	if p.l != nil {
		_ = p.l.Close()
		p.l = nil
	}
}

func (p *Proxy) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(c) })
	}
}

// link is a connection of a client and the one to the member.
type link struct {
	ends   [2]net.Conn // the client; the member, nil until it is connected
	broken chan struct{}
}

func (p *Proxy) breakLinks() {
	for k := range p.links {
		close(k.broken)
		for _, c := range k.ends {
			if c == nil {
				continue
			}
			_ = c.(*net.TCPConn).SetLinger(0) // a reset, not an orderly end
			_ = c.Close()
		}
		delete(p.links, k)
	}
}

// join adds an end of a link, so that it can be broken; false: it is too late.
func (p *Proxy) join(k *link, d Direction, c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, known := p.links[k]
	if p.refuse || p.closed || d == Down && !known {
		_ = c.Close()
		return false
	}
	k.ends[d] = c
	p.links[k] = struct{}{}
	return true
}

func (p *Proxy) serve(client net.Conn) {
	k := &link{broken: make(chan struct{})}
	if !p.join(k, Up, client) {
		return
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range k.ends {
			if c != nil {
				_ = c.Close()
			}
		}
		delete(p.links, k)
	}()
	// While the proxy is cut a client can connect and gets no answer.
	if !p.open(k, Up, time.Now()) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	member, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil || !p.join(k, Down, member) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pump(k, Up, client, member) })
	both.Go(func() { p.pump(k, Down, member, client) })
	both.Wait()
}

// open waits until data that arrived at a time may pass; false: the link is broken.
func (p *Proxy) open(k *link, d Direction, came time.Time) bool {
	for {
		p.mu.Lock()
		cut, changed := p.cut[d], p.changed
		left := time.Until(came.Add(p.delay[d]))
		p.mu.Unlock()
		var due <-chan time.Time
		if !cut {
			due = time.After(left)
		}
		select {
		case <-k.broken:
			return false
		case <-changed:
		case <-due:
			select {
			case <-k.broken:
				return false
			default:
				return true
			}
		}
	}
}

type chunk struct {
	bytes []byte
	came  time.Time
}

// pump forwards in one direction until either end is closed, and closes the other, so that no
// connection is half closed.
func (p *Proxy) pump(k *link, d Direction, from, to net.Conn) {
	const inFlight = 64
	held := &p.ways[d].held
	queue := make(chan chunk, inFlight)
	var writer sync.WaitGroup
	writer.Go(func() {
		ok := true
		for c := range queue {
			if ok = ok && p.open(k, d, c.came); ok {
				n, err := to.Write(c.bytes)
				p.ways[d].passed.Add(int64(n))
				ok = err == nil
			}
			held.Add(-int64(len(c.bytes)))
			if !ok {
				_ = from.Close() // this ends the reader; the rest of the queue is dropped
			}
		}
		// The end of a connection is held back like data.
		if ok {
			p.open(k, d, time.Now())
		}
		_ = to.Close()
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			held.Add(int64(n))
			queue <- chunk{append([]byte(nil), buf[:n]...), time.Now()}
		}
		if err != nil {
			break
		}
	}
	close(queue)
	writer.Wait()
}
