package plot

import (
	"fmt"
	"time"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Gaps shows how long nobody wrote at orderly handovers: from the last attempt of the old
// leader to the first of the new, on one clock. Below zero both wrote.
type Gaps struct {
	Note   string
	Series []Series
}

// Figure draws the gaps.
func (g Gaps) Figure() (*Figure, error) {
	n, below := 0, 0
	low, high := time.Duration(0), time.Duration(0)
	for _, s := range g.Series {
		for _, d := range s.Samples {
			n++
			if d < 0 {
				below++
			}
			low, high = min(low, d), max(high, d)
		}
	}
	if n == 0 {
		return nil, ErrNothing
	}
	title := fmt.Sprintf("The old leader stopped before the new one wrote: %d of %d handovers", n-below, n)
	fig := &Figure{title: title, note: g.Note, height: vg.Length(1.7+0.68*float64(len(g.Series))) * vg.Inch}
	p := axes("gap between the old leader's last write and the new leader's first (ms)", "")
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	// The range below zero is shown even if it is empty: that is the finding.
	p.X.Max = ms(high)*1.06 + 0.1
	p.X.Min = min(ms(low)*1.1, -0.12*p.X.Max)
	p.X.Tick.Marker = even(p.X.Min, p.X.Max, 9)
	p.Y.Min, p.Y.Max = -0.5, float64(len(g.Series))-0.35
	labels := make([]string, len(g.Series))
	for i, s := range g.Series {
		labels[len(labels)-1-i] = s.Name
	}
	p.Y.Tick.Marker = numbered(labels)
	p.Y.Tick.Length = 0
	p.Y.Width = 0
	grid(p, true, false)
	p.Add(layer(func(c draw.Canvas, x, y func(float64) vg.Length) {
		zero := x(0)
		box(c, see(alarm(), 0x18), c.Min.X, c.Min.Y, zero, c.Max.Y)
		c.StrokeLine2(draw.LineStyle{Color: alarm(), Width: 1.4}, zero, c.Min.Y, zero, c.Max.Y)
		label := letters(10, alarm())
		label.XAlign = draw.XRight
		if below == 0 {
			c.FillText(label, vg.Point{X: zero - 4, Y: c.Max.Y - 12}, "both write:")
			c.FillText(label, vg.Point{X: zero - 4, Y: c.Max.Y - 24}, "never seen")
		} else {
			c.FillText(label, vg.Point{X: zero - 4, Y: c.Max.Y - 12}, fmt.Sprintf("both write: %d", below))
		}
		for i, s := range g.Series {
			g.lane(c, s, i, float64(len(g.Series)-1-i), x, y)
		}
	}))
	fig.draw = p.Draw
	return fig, nil
}

func (g Gaps) lane(c draw.Canvas, s Series, i int, mid float64, x, y func(float64) vg.Length) {
	if len(s.Samples) == 0 {
		return
	}
	samples := ascending(s.Samples)
	dots(c, samples, i, func(d time.Duration, aside float64) vg.Point {
		return vg.Point{X: x(d.Seconds() * 1e3), Y: y(mid + aside*0.22)}
	})
	median := samples.At(0.5)
	m := x(median.Seconds() * 1e3)
	c.StrokeLine2(draw.LineStyle{Color: ink(), Width: 2.4}, m, y(mid-0.3), m, y(mid+0.3))
	c.FillText(letters(9.5, ink()), vg.Point{X: m + 4, Y: y(mid+0.3) + 1}, fmt.Sprintf("median %s, longest %s, %s", span(median), span(samples[len(samples)-1]), many(len(samples), "round")))
}
