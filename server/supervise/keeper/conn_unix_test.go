//go:build unix

package keeper

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// A receiver that hangs does not block send; messages are dropped whole; and sendBlocking
// succeeds when the receiver reads again.
func TestConn(t *testing.T) {
	mine, its, err := socketpair()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mine.Close() }()
	if err := syscall.SetNonblock(its, true); err != nil {
		t.Fatal(err)
	}
	far := &conn{file: os.NewFile(uintptr(its), "its")}
	defer func() { _ = far.file.Close() }()
	near := &conn{file: mine}
	sent, most := 0, 10_000
	for sent < most && near.send(Message{Kind: Stopped, Signal: sent}) == nil {
		sent++
	}
	if sent == 0 || sent == most {
		t.Fatalf("%d sent to a receiver that does not read", sent)
	}
	began := time.Now()
	const more = 100
	for range more {
		_ = near.send(Message{Kind: Stopped, Signal: -1})
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("dropping %d took %v", more, took)
	}
	said := make(chan error, 1)
	go func() { said <- near.sendBlocking(Message{Kind: Ended}) }()
	got, done := make(chan Message), make(chan struct{})
	defer close(done)
	go far.receive(got, done)
	for n := 0; ; n++ {
		m, ok := <-got
		if !ok {
			t.Fatalf("invalid message after %d", n)
		}
		if m.Kind == Ended {
			break
		}
		if n < sent && m.Signal != n {
			t.Fatalf("message %d is %+v", n, m)
		}
	}
	if err := <-said; err != nil {
		t.Error(err)
	}
}
