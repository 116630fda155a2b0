package pulse

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// A hint ends a fenced session when its connection has ended and its address refuses, and not
// before: not when the connection ends but the address accepts another one. A session that is not
// fenced stays, and so does one whose address was never reached.
func TestHints(t *testing.T) {
	st := mem.New(mem.Options{})
	t.Cleanup(st.Close)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	never, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = never.Close()
	open := func(id, address string, fenced bool) store.SessionID {
		s, err := st.Open(ctx, tenure.Candidate{ID: id, Address: address}, time.Hour, store.OpenOptions{Scope: store.Scope{"g"}, Fenced: fenced})
		if err != nil {
			t.Fatal(err)
		}
		return s.ID
	}
	fenced := open("fenced", "http://"+l.Addr().String()+"/x", true)
	others := []store.SessionID{open("unfenced", l.Addr().String(), false), open("unreached", never.Addr().String(), true)}
	h := NewHints(st, slog.New(slog.DiscardHandler))
	hctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); h.Run(hctx, store.Scope{"*"}) }()
	defer func() { stop(); <-done }()

	accept := func() net.Conn {
		_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	_ = accept().Close()
	last := accept() // it asked again, and the address accepted
	if _, err := st.Session(ctx, fenced); err != nil {
		t.Errorf("the end of a connection ended the session: %v", err)
	}
	ended := make(chan store.Update, 8)
	wctx, unwatch := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(ended)
		for u, err := range st.Watch(wctx, store.Scope{"*"}) {
			switch {
			case err != nil:
				return
			case u.Kind == store.Synced:
				close(watched)
			case u.Kind == store.SessionEnded:
				ended <- u
			}
		}
	}()
	<-watched
	_, _ = l.Close(), last.Close()
	select {
	case u := <-ended:
		if u.Session.ID != fenced || u.Reason != store.Suspected {
			t.Errorf("%+v", u)
		}
	case <-ctx.Done():
		t.Fatal("the session of a process that refuses lives")
	}
	for _, id := range others {
		if _, err := st.Session(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if err := st.End(ctx, others[0], store.Suspected); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("the store ended a session that is not fenced on suspicion: %v", err)
	}
	stop()
	<-done
	unwatch()
	for u := range ended {
		t.Errorf("%+v", u)
	}
	if n := h.Ended(); n != 1 {
		t.Errorf("%d are counted", n)
	}
}

// Only host:port is an address to connect to.
func TestHostPort(t *testing.T) {
	for in, want := range map[string]string{
		"a:1": "a:1", "http://a:1": "a:1", "https://[::1]:2/x?y": "[::1]:2", "": "", "a": "", "http://a/b:1": "", "a:": "",
	} {
		if got := hostPort(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
