//go:build unix

package supervise

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// idle is a guard of a process that ends when nobody needs it.
func idle(t *testing.T) *guard {
	t.Helper()
	mine, its, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(its), "its")
	cmd := exec.Command("cat")
	cmd.Stdin = file
	syscall.CloseOnExec(its)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	g := &guard{cmd: cmd, link: &link{file: mine}, says: make(chan message), done: make(chan struct{}), exited: make(chan struct{})}
	go g.link.receive(g.says, g.done)
	go func() {
		_ = cmd.Wait()
		close(g.exited)
	}()
	return g
}

// Somebody who does not listen holds nobody up, what is dropped is dropped whole, and the
// word that must get through does when the other end listens again.
func TestKeepLink(t *testing.T) {
	mine, its, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mine.Close() }()
	if err := syscall.SetNonblock(its, true); err != nil {
		t.Fatal(err)
	}
	far := &link{file: os.NewFile(uintptr(its), "its")}
	defer func() { _ = far.file.Close() }()
	near := &link{file: mine}
	sent, most := 0, 10_000
	for sent < most && near.send(message{Kind: isStill, Signal: sent}) == nil {
		sent++
	}
	if sent == 0 || sent == most {
		t.Fatalf("%d sent to one who does not listen", sent)
	}
	began := time.Now()
	const more = 100
	for range more {
		_ = near.send(message{Kind: isStill, Signal: -1})
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%d that were dropped took %v", more, took)
	}
	said := make(chan error, 1)
	go func() { said <- near.insist(message{Kind: isEnded}) }()
	got, done := make(chan message), make(chan struct{})
	defer close(done)
	go far.receive(got, done)
	for n := 0; ; n++ {
		m, ok := <-got
		if !ok {
			t.Fatalf("nonsense after %d", n)
		}
		if m.Kind == isEnded {
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
