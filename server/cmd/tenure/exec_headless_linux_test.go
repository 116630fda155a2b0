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

// TestHeadless is a program for other tests: its first thread exits, and another thread then
// writes the pid every 20 ms and ignores SIGTERM.
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
			runtime.LockOSThread() // never unlocked: the next goroutine gets another thread
			if syscall.Gettid() == os.Getpid() {
				close(ended)
				_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // ends this thread only
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
