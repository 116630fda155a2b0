package raft

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// network is the wires between nodes: a proxy for each who dials each other, so
// that every direction can be cut for itself. What is cut is held back and comes
// late when it is healed, as TCP would have it.
type network struct {
	mu    sync.Mutex
	gates map[[2]string]*gate  // who → whom: the bytes that flow this way
	via   map[[2]string]string // who → whom: the address of the proxy
	real  map[string]string    // where a node listens
	done  chan struct{}
	ends  []io.Closer
	goes  sync.WaitGroup
}

// newNetwork connects the nodes.
func newNetwork(t *testing.T, ids ...string) *network {
	w := &network{gates: map[[2]string]*gate{}, via: map[[2]string]string{}, real: map[string]string{}, done: make(chan struct{})}
	for _, id := range ids {
		w.add(t, id)
	}
	t.Cleanup(func() {
		close(w.done)
		w.mu.Lock()
		for _, c := range w.ends {
			_ = c.Close()
		}
		w.mu.Unlock()
		w.goes.Wait()
	})
	return w
}

// add connects a node to those that are there.
func (w *network) add(t *testing.T, id string) {
	t.Helper()
	w.real[id] = freeAddress(t)
	for other := range w.real {
		if other == id {
			continue
		}
		for _, pair := range [][2]string{{id, other}, {other, id}} {
			w.gates[pair] = newGate()
		}
		for _, pair := range [][2]string{{id, other}, {other, id}} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			w.via[pair] = l.Addr().String()
			w.hold(l)
			to, there, back := w.real[pair[1]], w.gates[pair], w.gates[[2]string{pair[1], pair[0]}]
			w.goes.Go(func() { w.serve(l, to, there, back) })
		}
	}
}

// given holds the ports that a test has been given.
var given sync.Map

// freeAddress returns an address that nobody listens on, below the ports that
// systems give to whoever dials: a node that is restarted must find it free.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 12000+rand.N(18000))
		if _, taken := given.LoadOrStore(address, true); taken {
			continue
		}
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no free port")
	return ""
}

// routes are the addresses that a node must dial instead of the real ones.
func (w *network) routes(from string) map[string]string {
	routes := map[string]string{}
	for pair, via := range w.via {
		if pair[0] == from {
			routes[w.real[pair[1]]] = via
		}
	}
	return routes
}

// dialVia dials by the routes.
func dialVia(routes map[string]string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if via, ok := routes[address]; ok {
			address = via
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
}

func (w *network) serve(l net.Listener, to string, there, back *gate) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		w.goes.Go(func() {
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				return
			}
			w.hold(in)
			w.hold(out)
			w.goes.Go(func() { w.carry(out, in, there) })
			w.carry(in, out, back)
		})
	}
}

func (w *network) hold(c io.Closer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.done:
		_ = c.Close()
	default:
		w.ends = append(w.ends, c)
	}
}

// carry copies while the gate is open. The end of a connection is held back, too.
func (w *network) carry(dst, src net.Conn, g *gate) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		select {
		case <-g.passable():
		case <-w.done:
			return
		}
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				_ = src.Close()
				return
			}
		}
		if err != nil {
			_ = dst.Close()
			return
		}
	}
}

// cut stops what flows from a to b.
func (w *network) cut(a, b string) { w.gates[[2]string{a, b}].set(false) }

// isolate cuts a node off from all others, both ways.
func (w *network) isolate(id string) {
	for pair, g := range w.gates {
		if pair[0] == id || pair[1] == id {
			g.set(false)
		}
	}
}

// split cuts two parts off from each other.
func (w *network) split(part ...string) {
	in := map[string]bool{}
	for _, id := range part {
		in[id] = true
	}
	for pair, g := range w.gates {
		if in[pair[0]] != in[pair[1]] {
			g.set(false)
		}
	}
}

// heal lets everything flow that concerns the node, or with "" all.
func (w *network) heal(id string) {
	for pair, g := range w.gates {
		if id == "" || pair[0] == id || pair[1] == id {
			g.set(true)
		}
	}
}

// gate is open or shut.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while it is open
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

func (g *gate) passable() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	isOpen := false
	select {
	case <-g.open:
		isOpen = true
	default:
	}
	switch {
	case open && !isOpen:
		close(g.open)
	case !open && isOpen:
		g.open = make(chan struct{})
	}
}
