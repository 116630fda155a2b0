package plot

import (
	"fmt"
	"time"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Beside shows the same measurement of different systems below each other, and for how long each
// was in a state in which it should not be.
type Beside struct {
	Title, Note string
	// Unit names the axis of durations.
	Unit string
	Rows []Row
}

// Row is one system: dots for Samples, a bar for Bar, and in words how many measurements have no
// end (None) and how many mistakes were made (Bad).
type Row struct {
	Name      string
	Samples   []time.Duration
	Bar       time.Duration
	None, Bad int
}

// Figure draws the rows.
func (b Beside) Figure() (*Figure, error) {
	longest := time.Duration(0)
	labels := make([]string, len(b.Rows))
	for i, r := range b.Rows {
		labels[len(labels)-1-i] = r.Name
		longest = max(longest, r.Bar)
		for _, d := range r.Samples {
			longest = max(longest, d)
		}
	}
	if longest == 0 {
		return nil, ErrNothing
	}
	fig := &Figure{title: b.Title, note: b.Note, height: vg.Length(1.9+0.36*float64(len(b.Rows))) * vg.Inch}
	fig.keys = []key{dotKey("a measurement", 0), boxKey("two at once", see(alarm(), 0x50))}
	p := axes(b.Unit+" (s)", "")
	const words = 1.45 // room for words at the right
	p.X.Min, p.X.Max = 0, longest.Seconds()*words
	p.X.Tick.Marker = even(0, longest.Seconds()*1.05, 8)
	p.Y.Min, p.Y.Max = -0.6, float64(len(b.Rows))-0.4
	p.Y.Tick.Marker = numbered(labels)
	p.Y.Tick.Length = 0
	p.Y.Width = 0
	grid(p, true, false)
	p.Add(layer(func(c draw.Canvas, x, y func(float64) vg.Length) {
		for i, r := range b.Rows {
			mid := float64(len(b.Rows) - 1 - i)
			if r.Bar > 0 {
				box(c, see(alarm(), 0x50), x(0), y(mid-0.3), x(r.Bar.Seconds()), y(mid+0.3))
			}
			dots(c, ascending(r.Samples), 0, func(d time.Duration, aside float64) vg.Point {
				return vg.Point{X: x(d.Seconds()), Y: y(mid + aside*0.2)}
			})
			text := ""
			if r.None > 0 {
				text = fmt.Sprintf("no other leader: %d", r.None)
			}
			if r.Bad > 0 {
				if text != "" {
					text += "; "
				}
				text += fmt.Sprintf("stale writes: %d", r.Bad)
			}
			label := letters(9.5, ink())
			label.YAlign = draw.YCenter
			c.FillText(label, vg.Point{X: x(longest.Seconds() * 1.04), Y: y(mid)}, text)
		}
	}))
	fig.draw = p.Draw
	return fig, nil
}
