package history

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tenurehq/tenure/clock"
)

// Events of concurrent writers are all read, in the order of time.
func TestWriteRead(t *testing.T) {
	dir := t.TempDir()
	const writers, each = 8, 500
	var wg sync.WaitGroup
	for file := range 2 {
		w, err := Create(dir, fmt.Sprint("calls-", file))
		if err != nil {
			t.Fatal(err)
		}
		for n := range writers {
			wg.Go(func() {
				for i := range clock.Instant(each) {
					if err := w.Write(Call{Start: i, End: 10*i + clock.Instant(n), First: 1, Last: 1}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	n, last := 0, clock.Instant(0)
	d, err := Open(dir, func(d Damage) { t.Error(d) })
	if err != nil {
		t.Fatal(err)
	}
	err = d.InOrder(t.Context(), func(e Event) {
		if n++; When(e) < last || e.(Call).Line.Line == 0 {
			t.Fatalf("%v at %v after %v", When(e), e.(Call).Line, last)
		}
		last = When(e)
	}, "call")
	if err != nil || n != 2*writers*each {
		t.Fatalf("%d events, %v", n, err)
	}
}

// A full disk is an error, of Close at the latest, and of every call after it.
func TestDiskFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	w := NewWriter("calls.ndjson", full, sizeLimit)
	if err := w.Write(Call{}); err != nil {
		t.Fatalf("the first line is not written yet: %v", err)
	}
	for range 2 {
		if err := w.Close(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "no space left") {
			t.Fatalf("got %v", err)
		}
	}
	if err := w.Write(Call{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v", err)
	}
}

// A second run does not overwrite the first.
func TestCreateTwice(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, "calls")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	if _, err := Create(dir, "calls"); !errors.Is(err, os.ErrExist) || !strings.Contains(err.Error(), "new directory for each run") {
		t.Fatalf("got %v", err)
	}
}
