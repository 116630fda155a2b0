package enginetest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// Proxy stands between a client and a member and can stop being a good network.
// Use its Endpoint in the place of the member's.
//
// A cut is silent: connections stay open, new ones are accepted, and bytes are
// held back. Heal lets them go on their way, as TCP does when it retransmits.
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

// Direction is a way through a Proxy.
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

// Proxy puts a proxy before the member's client address.
func (m *Member) Proxy() *Proxy {
	m.t.Helper()
	return NewProxy(m.t, m.client)
}

// Addr returns host:port of the proxy.
func (p *Proxy) Addr() string { return p.addr }

// Endpoint returns the URL of the proxy.
func (p *Proxy) Endpoint() string { return "http://" + p.addr }

// Cut holds everything back, both ways.
func (p *Proxy) Cut() { p.set(func() { p.cut = [2]bool{true, true} }) }

// CutOneWay holds back what goes one way; the other way stays open.
func (p *Proxy) CutOneWay(d Direction) { p.set(func() { p.cut[d] = true }) }

// Delay adds a delay to what goes one way. The order is kept.
func (p *Proxy) Delay(d Direction, by time.Duration) { p.set(func() { p.delay[d] = by }) }

// Break breaks the connections that are open; new ones are served.
func (p *Proxy) Break() { p.set(p.breakLinks) }

// Redirect breaks the connections that are open and forwards new ones to another target.
func (p *Proxy) Redirect(target string) {
	p.set(func() {
		p.target = target
		p.breakLinks()
	})
}

// Refuse breaks the connections that are open and refuses new ones.
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

// Passed returns how many bytes went through in a direction.
func (p *Proxy) Passed(d Direction) int64 { return p.ways[d].passed.Load() }

// Held returns how many bytes wait in a direction: above zero, the fault has
// bitten.
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

// link is one connection of a client, with its other half.
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

// join notes an end of a link, so that it can be broken; false: it is too late.
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
	// While the way is cut a client that connects hears nothing, and no refusal.
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

// open waits until what came at a time may go on; false: the link is broken.
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

// pump forwards one way until either end is gone, and takes the other with it: a
// connection that is half closed is not a fault that anybody asked for.
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
				_ = from.Close() // ends the reader; the rest of the queue is dropped
			}
		}
		// The end of a connection is news too, and waits like any other.
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
