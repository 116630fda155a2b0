package clock

import (
	"testing"
	"time"
)

// The system timer wakes at the instant that was set, not before, and a later
// Set replaces an earlier one.
func TestSystemTimer(t *testing.T) {
	for name, timer := range map[string]Timer{
		"system":  System().NewTimer(),
		"runtime": NewRuntimeTimer(System()),
	} {
		t.Run(name, func(t *testing.T) {
			defer timer.Stop()
			start := System().Now()
			timer.Set(start.Add(time.Hour))
			timer.Set(start.Add(20 * time.Millisecond))
			select {
			case <-timer.C():
			case <-time.After(10 * time.Second):
				t.Fatal("not woken in 10 s by a timer of 20 ms")
			}
			if took := System().Now().Sub(start); took < 20*time.Millisecond {
				t.Fatalf("woken after %v, before the 20 ms that were set", took)
			}
			timer.Set(start) // already past: wakes at once
			select {
			case <-timer.C():
			case <-time.After(10 * time.Second):
				t.Fatal("an instant that is already past did not wake")
			}
			timer.Set(System().Now().Add(10 * time.Millisecond))
			timer.Set(Never)
			select {
			case <-timer.C():
				t.Fatal("woken although the timer was set to Never")
			case <-time.After(30 * time.Millisecond):
			}
		})
	}
}

// Stop ends a timer that nobody will ever wake.
func TestStopUnset(t *testing.T) {
	for range 100 {
		System().NewTimer().Stop()
	}
}

// Never is a fixed point: a deadline computed from it does not wrap around.
func TestNever(t *testing.T) {
	if Never.Add(time.Second) != Never {
		t.Fatal("Never + 1s is not Never")
	}
}

func BenchmarkNow(b *testing.B) {
	c := System()
	for b.Loop() {
		_ = c.Now()
	}
}
