package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestHeadless is a program for other tests: it ends its first thread, and then writes its
// number down every 20 ms from another, deaf to SIGTERM.
func TestHeadless(t *testing.T) {
	if os.Getenv("HEADLESS") == "" {
		t.Skip("for other tests")
	}
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
	beats, err := os.OpenFile(filepath.Join(os.Getenv("DIR"), "beats"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	for {
		go func() {
			runtime.LockOSThread() // and never unlocks: the next gets another thread
			if syscall.Gettid() == os.Getpid() {
				close(ended)
				_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // this thread's end
			}
			select {}
		}()
		select {
		case <-ended:
		case <-time.After(time.Millisecond):
			continue
		}
		break
	}
	for ; ; time.Sleep(20 * time.Millisecond) {
		_, _ = fmt.Fprintln(beats, os.Getpid())
	}
}
