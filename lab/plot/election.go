package plot

import (
	"fmt"
	"math"
	"time"

	"github.com/tenurehq/tenure/lab/measure"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Elections shows how long elections took while leaders were killed one after the other: from
// when a node first saw the vacancy to the beginning of the next term.
type Elections struct {
	Note   string
	Series []Series
	// Bar is what 95 % of the first series must be below.
	Bar time.Duration
}

// Figure draws, for every latency, which share of the elections was faster.
func (e Elections) Figure() (*Figure, error) {
	low, high := time.Duration(0), e.Bar
	sets := make([]measure.Series, len(e.Series))
	for i, s := range e.Series {
		sets[i] = ascending(s.Samples)
		for _, d := range sets[i] {
			if d = max(d, 10*time.Microsecond); low == 0 || d < low {
				low = d
			}
			high = max(high, d)
		}
	}
	if low == 0 || len(sets[0]) == 0 {
		return nil, ErrNothing
	}
	const q = 0.95
	at := sets[0].At(q)
	verdict := "within"
	if at > e.Bar {
		verdict = "MISSING"
	}
	title := fmt.Sprintf("%.3g %% of %d elections under churn took at most %s, %s the bar of %s", 100*q, len(sets[0]), span(at), verdict, span(e.Bar))
	fig := &Figure{title: title, note: e.Note, height: 4.2 * vg.Inch}
	for i, s := range e.Series {
		if len(sets[i]) > 0 {
			fig.keys = append(fig.keys, lineKey(fmt.Sprintf("%s (median %s, slowest %s)", s.Name, span(sets[i].At(0.5)), span(sets[i][len(sets[i])-1])), curve(i)))
		}
	}
	p := axes("from when a node saw the vacancy to the next term (ms, logarithmic)", "elections that were faster (%)")
	logarithmic(&p.X, low.Seconds()*1e3*0.8, high.Seconds()*1e3*1.3)
	p.Y.Min, p.Y.Max = 0, 102
	p.Y.Tick.Marker = even(0, 100, 5)
	grid(p, true, true)
	p.Add(layer(func(c draw.Canvas, x, y func(float64) vg.Length) {
		bx, by := x(math.Log10(e.Bar.Seconds()*1e3)), y(100*q)
		c.StrokeLine2(dashed(alarm()), bx, c.Min.Y, bx, by)
		c.StrokeLine2(dashed(alarm()), c.Min.X, by, bx, by)
		label := letters(10.5, alarm())
		label.XAlign = draw.XRight
		c.FillText(label, vg.Point{X: bx - 5, Y: c.Min.Y + 8}, fmt.Sprintf("bar: %.3g %% within %s", 100*q, span(e.Bar)))
		for i, set := range sets {
			shares(c, set, i, x, y)
		}
	}))
	fig.draw = p.Draw
	return fig, nil
}

func curve(i int) draw.LineStyle {
	style := draw.LineStyle{Color: hue(i), Width: 2.2}
	if i > 0 {
		style.Dashes = []vg.Length{vg.Length(8 / i), 2}
	}
	return style
}

// shares draws one curve.
func shares(c draw.Canvas, set []time.Duration, i int, x, y func(float64) vg.Length) {
	if len(set) == 0 {
		return
	}
	var path []vg.Point
	last := y(0)
	few := thin(set)
	for n, d := range few {
		at := x(math.Log10(max(d, 10*time.Microsecond).Seconds() * 1e3))
		path = append(path, vg.Point{X: at, Y: last})
		last = y(100 * float64(n+1) / float64(len(few)))
		path = append(path, vg.Point{X: at, Y: last})
	}
	c.StrokeLines(curve(i), append(path, vg.Point{X: c.Max.X, Y: last}))
}
