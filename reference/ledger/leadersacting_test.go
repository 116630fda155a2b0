package ledger

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

type event struct {
	at    time.Duration
	token fence.Token
}

func actingAt(events []event, now, window time.Duration) int {
	var a actors
	for _, e := range events {
		a.accept(e.token, clock.Instant(e.at), window)
	}
	return a.acting(clock.Instant(now), window)
}

// leaders_acting, case by case: 0 in a gap, 1 while the newest token writes, 2 or
// more as soon as a lower token was accepted after a higher one in the window.
func TestActing(t *testing.T) {
	const window = 2 * time.Second
	ms := time.Millisecond
	for _, tt := range []struct {
		name   string
		events []event
		now    time.Duration
		want   int
	}{
		{"nobody ever", nil, 0, 0},
		{"one writes", []event{{0, 4}}, 0, 1},
		{"just within the window", []event{{0, 4}}, 1999 * ms, 1},
		{"just out of it", []event{{0, 4}}, 2000 * ms, 0},
		{"a handover", []event{{0, 4}, {100 * ms, 5}}, 200 * ms, 1},
		{"a handover, later", []event{{0, 4}, {100 * ms, 5}}, 2050 * ms, 1},
		{"gap after a handover", []event{{0, 4}, {100 * ms, 5}}, 2100 * ms, 0},
		{"the old one writes once more", []event{{0, 4}, {100 * ms, 5}, {200 * ms, 4}}, 200 * ms, 2},
		{"at the same instant", []event{{0, 5}, {0, 4}}, 0, 2},
		{"only the late one was new here", []event{{0, 5}, {1 * ms, 4}}, 1 * ms, 2},
		{"three", []event{{0, 6}, {1 * ms, 5}, {2 * ms, 4}}, 2 * ms, 3},
		{"one of three is in order", []event{{0, 4}, {1 * ms, 6}, {2 * ms, 5}}, 2 * ms, 2},
		{"the newest went on", []event{{0, 5}, {1 * ms, 4}, {2 * ms, 5}}, 1000 * ms, 2},
		{"the pair leaves the window", []event{{0, 5}, {1 * ms, 4}}, 2000 * ms, 1},
		{"both leave it", []event{{0, 5}, {1 * ms, 4}}, 2001 * ms, 0},
		{"the higher one was long ago", []event{{0, 5}, {3000 * ms, 4}}, 3000 * ms, 1},
		{"then a newer one comes", []event{{0, 5}, {1 * ms, 4}, {1900 * ms, 6}}, 3000 * ms, 1},
	} {
		if got := actingAt(tt.events, tt.now, window); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// The bounded record of events gives the same answer as the whole list of events.
func TestActingForgetsNothing(t *testing.T) {
	const window = 10
	whole := func(events []event, now time.Duration) int {
		n, stale := 0, map[fence.Token]bool{}
		for i, e := range events {
			if e.at+window <= now {
				continue
			}
			n = 1
			for _, before := range events[:i] {
				if before.at+window > now && before.token > e.token {
					stale[e.token] = true
				}
			}
		}
		return n + len(stale)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 2000 {
		var events []event
		var now time.Duration
		for range r.IntN(30) {
			now += time.Duration(r.IntN(4))
			events = append(events, event{now, fence.Token(r.IntN(5) + 1)})
		}
		now += time.Duration(r.IntN(12))
		if got, want := actingAt(events, now, window), whole(events, now); got != want {
			t.Fatalf("round %d: %v at %d: %d, want %d", round, events, now, got, want)
		}
	}
}
