package plot

import (
	"fmt"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Failovers shows how long nobody wrote after a crash, by TTL and engine: from the last write
// of the old leader to the first of the new.
type Failovers struct {
	// Note says how it was measured: load, rounds, machine, seed.
	Note   string
	Series []FailoverSeries
}

// FailoverSeries is one engine.
type FailoverSeries struct {
	Engine string
	At     []FailoverPoint
}

// FailoverPoint is one TTL. Bound is the promised bound.
type FailoverPoint struct {
	TTL     time.Duration
	Bound   time.Duration
	Samples []time.Duration
}

// Figure draws the failovers.
func (f Failovers) Figure() (*Figure, error) {
	var ttls []time.Duration
	low, high := time.Duration(0), time.Duration(0)
	n, over := 0, 0
	for _, s := range f.Series {
		for _, p := range s.At {
			if len(p.Samples) == 0 {
				continue
			}
			if !slices.Contains(ttls, p.TTL) {
				ttls = append(ttls, p.TTL)
			}
			shortest, longest := slices.Min(p.Samples), max(p.Bound, slices.Max(p.Samples))
			if low == 0 || shortest < low {
				low = shortest
			}
			high = max(high, longest)
			n += len(p.Samples)
			over += len(slices.DeleteFunc(slices.Clone(p.Samples), func(d time.Duration) bool { return d <= p.Bound }))
		}
	}
	if low <= 0 {
		return nil, ErrNothing
	}
	slices.Sort(ttls)
	title := fmt.Sprintf("After a crash another leads within the promised bound: %d of %d times", n, n)
	if over > 0 {
		title = fmt.Sprintf("%d of %d failovers took longer than the promised bound", over, n)
	}
	fig := &Figure{title: title, note: f.Note, height: 4.4 * vg.Inch}
	for i, s := range f.Series {
		fig.keys = append(fig.keys, dotKey(s.Engine, i))
	}
	fig.keys = append(fig.keys,
		lineKey("median", draw.LineStyle{Color: ink(), Width: 2.4}),
		lineKey("bound computed from the configuration", dashed(alarm())))

	p := axes(ttlAxis, "failover, write to write (s)")
	ttlTicks(&p.X, ttls)
	p.X.Tick.Length = 0
	p.X.Min, p.X.Max = -0.5, float64(len(ttls))-0.5
	logarithmic(&p.Y, low.Seconds()*0.6, high.Seconds()*1.25)
	grid(p, false, true)
	p.Add(layer(func(c draw.Canvas, x, y func(float64) vg.Length) { f.points(c, ttls, x, y) }))
	fig.draw = p.Draw
	return fig, nil
}

func (f Failovers) points(c draw.Canvas, ttls []time.Duration, x, y func(float64) vg.Length) {
	seconds := func(d time.Duration) vg.Length { return y(math.Log10(max(d, time.Millisecond).Seconds())) }
	// Engines stand side by side where there are several.
	beside, before := map[time.Duration]int{}, map[time.Duration]int{}
	for _, s := range f.Series {
		for _, p := range s.At {
			if len(p.Samples) > 0 {
				beside[p.TTL]++
			}
		}
	}
	for i, s := range f.Series {
		for _, p := range s.At {
			if len(p.Samples) == 0 {
				continue
			}
			samples := ascending(p.Samples)
			lane := 0.8 / float64(max(2, beside[p.TTL]))
			mid := float64(slices.Index(ttls, p.TTL)) + lane*(float64(before[p.TTL])-float64(beside[p.TTL]-1)/2)
			before[p.TTL]++
			dots(c, samples, i, func(d time.Duration, aside float64) vg.Point {
				return vg.Point{X: x(mid + aside*lane*0.25), Y: seconds(d)}
			})
			left, right := x(mid-lane*0.42), x(mid+lane*0.42)
			m := seconds(samples.At(0.5))
			c.StrokeLine2(draw.LineStyle{Color: ink(), Width: 2.4}, left, m, right, m)
			label := letters(9.5, ink())
			label.XAlign, label.YAlign = draw.XCenter, draw.YTop
			c.FillText(label, vg.Point{X: x(mid), Y: seconds(samples[0]) - 5}, span(samples.At(0.5)))
			b := seconds(p.Bound)
			c.StrokeLine2(dashed(alarm()), left, b, right, b)
		}
	}
}
