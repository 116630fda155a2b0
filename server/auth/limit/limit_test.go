package limit

import (
	"fmt"
	"testing"
	"time"
)

// A bounded number of callers is remembered: idle ones are removed, and if none is idle, new
// callers share one allowance.
func TestCallersAreBounded(t *testing.T) {
	c := NewCallers(Config{Identities: 10, Rate: 1, Burst: 2}.WithDefaults())
	now := time.Now()
	take := func(i int) (wait time.Duration) {
		c.With(fmt.Sprint("caller-", i), now, func(c *Caller) { wait = c.Ordinary.Take(now) })
		return wait
	}
	passed := 0
	for i := range 1000 {
		if take(i) == 0 {
			passed++
		}
	}
	if c.Count() != 10 || passed != 12 {
		t.Errorf("%d are remembered and %d passed, want 10 and 12: one each of 10, and two of all others", c.Count(), passed)
	}
	if take(0) != 0 || take(0) == 0 {
		t.Error("what was counted of the first was lost")
	}
	// A caller with an open stream is not removed.
	c.With("caller-0", now, func(c *Caller) { c.Streams++ })
	now = now.Add(time.Minute)
	for i := range 1000 {
		if take(2000+i) != 0 {
			t.Fatalf("newcomer %d was refused, though the others had been idle for a minute", i)
		}
		now = now.Add(time.Second)
	}
	if e, ok := c.by["caller-0"]; !ok || e.Value.(*Caller).Streams != 1 || c.Count() != 10 {
		t.Errorf("the caller with a stream: %v; %d are remembered", ok, c.Count())
	}
}
