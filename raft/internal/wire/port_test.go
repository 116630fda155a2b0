package wire

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"
)

func open(t *testing.T, id, founded string, serve func(net.Conn)) *Port {
	t.Helper()
	p, err := Listen(Config{
		ID: id, Group: "g", Listen: "127.0.0.1:0", Advertise: "127.0.0.1:1", Dial: (&net.Dialer{}).DialContext,
		Heartbeat: time.Second, Call: 200 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Start(founded, serve)
	t.Cleanup(func() {
		_ = p.Close()
		p.Wait()
	})
	return p
}

// echo answers every question with itself.
func echo(conn net.Conn) {
	var v any
	for ReadFrame(conn, &v, MaxCall) == nil {
		if WriteFrame(conn, v) != nil {
			return
		}
	}
}

// Nodes that must not talk to each other do not: of another group, another
// cluster, a longer heartbeat, or at somebody else's address.
func TestStrangers(t *testing.T) {
	p := open(t, "a", "f", echo)
	good := hello{version, forRaft, "g", "b", "a", time.Second, "f", ""}
	for _, welcome := range []hello{good, {version, forRaft, "g", "b", "a", time.Millisecond, "", ""}, {version, forCall, "g", "b", "a", time.Hour, "", ""}} {
		if err := p.check(welcome); err != nil {
			t.Errorf("%+v is not welcome: %v", welcome, err)
		}
	}
	for name, spoil := range map[string]func(*hello){
		"version":   func(h *hello) { h.Version++ },
		"group":     func(h *hello) { h.Group = "h" },
		"to":        func(h *hello) { h.To = "c" },
		"founded":   func(h *hello) { h.Founded = "other" },
		"heartbeat": func(h *hello) { h.Heartbeat++ },
		"for":       func(h *hello) { h.For = "fun" },
	} {
		h := good
		spoil(&h)
		if p.check(h) == nil {
			t.Errorf("%s: %+v is welcome", name, h)
		}
	}
}

// A refusal reaches the one who is refused; garbage, silence and frames that are
// too long end the connection, and nothing else.
func TestRefusals(t *testing.T) {
	a, b := open(t, "a", "f", echo), open(t, "b", "other", echo)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	address := a.listener.Addr().String()
	if _, err := b.connect(ctx, "a", address, forRaft); err == nil || !strings.Contains(err.Error(), "two clusters") {
		t.Errorf("of another cluster: %v", err)
	}
	if _, err := b.connect(ctx, "c", address, forCall); err == nil || !strings.Contains(err.Error(), "at this address is a, not c") {
		t.Errorf("for another node: %v", err)
	}
	for name, said := range map[string]string{"garbage": "GET / HTTP/1.1\r\n\r\n", "too long": "\x7f\xff\xff\xff", "no JSON": "\x00\x00\x00\x02xx", "silence": ""} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(said))
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s is not turned away: %d bytes, %v", name, n, err)
		}
		_ = conn.Close()
	}
	same := open(t, "b", "", nil)
	var got string
	if err := NewCallers(same).Call(ctx, "a", address, "hello", &got); err != nil || got != "hello" {
		t.Errorf("a peer is answered %q, %v", got, err)
	}
}

// A call on a connection that has died since is made again on a new one; a peer
// that does not answer costs no more than the deadline.
func TestCalls(t *testing.T) {
	hangs := open(t, "h", "", func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1<<10)); time.Sleep(time.Second) })
	a, b := open(t, "a", "", echo), open(t, "b", "", nil)
	calls := NewCallers(b)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	address := a.listener.Addr().String()
	for range 3 {
		var got string
		if err := calls.Call(ctx, "a", address, "x", &got); err != nil || got != "x" {
			t.Fatalf("answered %q, %v", got, err)
		}
		if n := len(calls.idle["a@"+address]); n != 1 {
			t.Errorf("%d connections are kept", n)
		}
		_ = calls.idle["a@"+address][0].(*dialled).Conn.Close()
	}
	short, cancelShort := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancelShort()
	start := time.Now()
	if err := calls.Call(short, "h", hangs.listener.Addr().String(), "x", new(string)); err == nil {
		t.Error("answered by one who hangs")
	}
	if took := time.Since(start); took > 900*time.Millisecond {
		t.Errorf("given up after %v", took)
	}
	if err := calls.Call(context.Background(), "a", address, "x", new(string)); err == nil {
		t.Error("a call without a deadline")
	}
}

// No more connections are accepted than can be served.
func TestLimit(t *testing.T) {
	p := open(t, "a", "", echo)
	p.mu.Lock()
	p.accepted = maxAccepted
	p.cfg.Call = 5 * time.Second
	p.mu.Unlock()
	conn, err := net.Dial("tcp", p.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	start := time.Now()
	_, err = conn.Read(make([]byte, 1))
	if err == nil || time.Since(start) > 3*time.Second {
		t.Errorf("one too many is not turned away at once: %v after %v", err, time.Since(start))
	}
	_ = conn.Close()
	p.mu.Lock()
	p.accepted = 0
	p.mu.Unlock()
}
