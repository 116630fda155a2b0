package advise

import (
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lease"
)

// timelineWidth is how many characters the time from the last answered keep-alive to the
// next leader takes.
const timelineWidth = 56

// Timeline draws what happens when a leader is cut off from the store right after a
// keep-alive that was answered.
func Timeline(e lease.Explanation, w Wish) string {
	t := e.Timing
	usual, _ := failover(e, w)
	end := max(usual, t.TTL, 1)
	at := func(d time.Duration) int {
		return min(timelineWidth, max(0, int(float64(d)/float64(end)*timelineWidth+0.5)))
	}
	var b strings.Builder
	row := func(name string, cells []byte, note string) {
		fmt.Fprintf(&b, "  %-12s%s\n  %-12s%s\n", name, strings.TrimRight(string(cells), " "), "", note)
	}
	blank := func() []byte { return []byte(strings.Repeat(" ", timelineWidth+1)) }
	bar := func(to time.Duration, c byte) []byte {
		cells := blank()
		for i := 0; i < at(to); i++ {
			cells[i] = c
		}
		cells[at(to)] = '|'
		return cells
	}
	fmt.Fprintf(&b, "The leader is cut off at 0, right after a keep-alive that was answered. To scale, until %v:\n\n", tidy(end))
	beats := blank()
	beats[0] = 'o'
	for d, n := t.Beat, 0; t.Beat > 0 && d < e.Trust && n < 1000; d, n = d+t.Beat, n+1 {
		beats[at(d)] = 'x'
	}
	row("keep-alives", beats, fmt.Sprintf("one every %v; x: not answered", t.Beat))
	warned := time.Duration(t.Misses) * t.Beat
	if warned < end {
		cells := blank()
		cells[at(warned)] = '!'
		row("warned", cells, fmt.Sprintf("at %v, after %d without an answer", tidy(warned), t.Misses))
	}
	stops := e.Trust - t.Grace
	row("leader", bar(stops, '#'), fmt.Sprintf("acts until %v: TTL less drift, margin and grace", tidy(stops)))
	row("store", bar(t.TTL, '='), fmt.Sprintf("keeps the group for it until %v: the TTL", t.TTL))
	if w.Engine.Scan > 0 {
		cells := blank()
		cells[at(t.TTL+w.Engine.Scan)] = '|'
		for i := at(t.TTL); i < at(t.TTL+w.Engine.Scan); i++ {
			cells[i] = '.'
		}
		row(w.Engine.Name, cells, fmt.Sprintf("may notice %v later", w.Engine.Scan))
	}
	next := blank()
	next[at(usual)] = '^'
	row("next leader", next, fmt.Sprintf("at %v at the latest, if it is the first in line and calls are answered", tidy(usual)))
	return b.String()
}
