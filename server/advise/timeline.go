package advise

import (
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lease"
)

// timelineWidth is the number of characters from the last answered keep-alive to the next
// leader.
const timelineWidth = 56

// Timeline draws what happens when a leader is cut off from the store right after a
// keep-alive was answered.
func Timeline(e lease.Explanation, g Goals) string {
	t := e.Timing
	usual, _ := failover(e, g)
	end := max(usual, t.TTL, 1)
	at := func(d time.Duration) int {
		return min(timelineWidth, max(0, int(float64(d)/float64(end)*timelineWidth+0.5)))
	}
	var b strings.Builder
	row := func(name string, cells []byte, note string) {
		fmt.Fprintf(&b, "  %-12s%s\n  %-12s%s\n", name, strings.TrimRight(string(cells), " "), "", note)
	}
	blank := func() []byte { return []byte(strings.Repeat(" ", timelineWidth+1)) }
	bar := func(from, to time.Duration, c byte) []byte {
		cells := blank()
		for i := at(from); i < at(to); i++ {
			cells[i] = c
		}
		cells[at(to)] = '|'
		return cells
	}
	fmt.Fprintf(&b, "The leader is cut off at 0, right after an answered keep-alive. To scale, until %v:\n\n", round(end))
	beats := blank()
	beats[0] = 'o'
	for d, n := t.Beat, 0; t.Beat > 0 && d < e.Trust && n < 1000; d, n = d+t.Beat, n+1 {
		beats[at(d)] = 'x'
	}
	row("keep-alives", beats, fmt.Sprintf("one every %v; x: not answered", t.Beat))
	mark := func(d time.Duration, c byte) []byte {
		cells := blank()
		cells[at(d)] = c
		return cells
	}
	if warned := time.Duration(t.Misses) * t.Beat; warned < end {
		row("warning", mark(warned, '!'), fmt.Sprintf("at %v, after %d without an answer", round(warned), t.Misses))
	}
	stops := e.Trust - t.Grace
	row("leader", bar(0, stops, '#'), fmt.Sprintf("acts until %v: TTL less drift, margin and grace", round(stops)))
	row("store", bar(0, t.TTL, '='), fmt.Sprintf("reserves the group for it until %v: the TTL", t.TTL))
	if late := g.Engine.Late(t.TTL); late > 0 {
		row(g.Engine.Engine, bar(t.TTL, t.TTL+late, '.'), fmt.Sprintf("may notice %v later", late))
	}
	row("next leader", mark(usual, '^'), fmt.Sprintf("at %v at the latest, if the first candidate acts and calls are answered", round(usual)))
	return b.String()
}
