package keeper

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// Whatever the order of calls, SIGKILL is due no later than Reserve before the last deadline
// that came in time, SIGTERM a grace period earlier, and nothing extends what is stopping.
func TestWatchdog(t *testing.T) {
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 0))
		ms := func(from, to int) time.Duration { return time.Duration(from+r.IntN(to-from)) * time.Millisecond }
		now := clock.Instant(time.Hour)
		w := watchdog{grace: ms(0, 2000), deadline: now.Add(5 * time.Second)}
		latest, stopping := w.deadline, false
		for kill := false; !kill; {
			now = now.Add(ms(0, 400))
			switch r.IntN(20) {
			case 0:
				w.stop(now, Asked)
				stopping = true
			case 1:
				w.kill(now, Forced)
				stopping = true
			case 2, 3, 4, 5, 6:
				d := now.Add(ms(-3000, 6000))
				if w.extend(d); !stopping {
					latest = max(latest, d)
				}
			}
			_, kill = w.due(now)
			stopping = stopping || w.reason != ""
			switch {
			case w.deadline != latest:
				t.Fatalf("seed %d: deadline %v, want %v", seed, w.deadline, latest)
			case now >= latest.Add(-Reserve) && !kill:
				t.Fatalf("seed %d: no SIGKILL at %v, deadline %v", seed, now, latest)
			case now >= latest.Add(-Reserve-w.grace) && w.reason == "":
				t.Fatalf("seed %d: no SIGTERM at %v, deadline %v", seed, now, latest)
			case w.next() > latest.Add(-Reserve):
				t.Fatalf("seed %d: it sleeps until %v, deadline %v", seed, w.next(), latest)
			}
		}
	}
}

// SIGTERM is due a grace period before SIGKILL, and never if there is no grace period.
func TestWatchdogTerm(t *testing.T) {
	start := clock.Instant(time.Hour)
	deadline := start.Add(10 * time.Second)
	w := watchdog{grace: time.Second, deadline: deadline}
	for _, step := range []struct {
		at         clock.Instant
		term, kill bool
	}{
		{start, false, false},
		{deadline.Add(-Reserve - time.Second - 1), false, false},
		{deadline.Add(-Reserve - time.Second), true, false},
		{deadline.Add(-Reserve - 1), false, false},
		{deadline.Add(-Reserve), false, true},
	} {
		if term, kill := w.due(step.at); term != step.term || kill != step.kill {
			t.Errorf("%v before the deadline: term %v, kill %v", deadline.Sub(step.at), term, kill)
		}
	}
	w = watchdog{deadline: deadline}
	if term, kill := w.due(deadline.Add(-Reserve)); term || !kill {
		t.Errorf("without a grace: term %v, kill %v", term, kill)
	}
}
