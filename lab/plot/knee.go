package plot

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Knee shows how often a leader that had not crashed lost its term, by TTL and by the load on
// the machine.
type Knee struct {
	Note string
	// Over is how long each TTL was observed.
	Over   time.Duration
	Series []KneeSeries
}

// KneeSeries is one kind of load.
type KneeSeries struct {
	Load string
	At   []KneePoint
}

// KneePoint is one TTL.
type KneePoint struct {
	TTL   time.Duration
	False int
}

// Figure draws the false failovers.
func (k Knee) Figure() (*Figure, error) {
	total := map[time.Duration]int{}
	most := 0
	for _, s := range k.Series {
		for _, p := range s.At {
			total[p.TTL] += p.False
			most = max(most, p.False)
		}
	}
	if len(total) == 0 {
		return nil, ErrNothing
	}
	ttls := slices.Sorted(maps.Keys(total))
	at := len(ttls) // the smallest TTL from which on there was none
	for at > 0 && total[ttls[at-1]] == 0 {
		at--
	}
	watched := span(k.Over)
	if k.Over >= time.Minute {
		watched = fmt.Sprintf("%.3g minutes", k.Over.Minutes())
	}
	var title string
	switch {
	case at == len(ttls):
		title = fmt.Sprintf("False failovers at every TTL up to %s: a longer one is needed under this load", span(ttls[at-1]))
	case at == 0:
		title = fmt.Sprintf("No false failover in %s of load at any TTL from %s up", watched, span(ttls[0]))
	default:
		title = fmt.Sprintf("From a TTL of %s on, load alone unseats no leader in %s", span(ttls[at]), watched)
	}
	fig := &Figure{title: title, note: k.Note, height: 4.2 * vg.Inch}
	for i, s := range k.Series {
		fig.keys = append(fig.keys, dotKey(s.Load, i))
	}
	p := axes(ttlAxis, "false failovers in "+watched)
	ttlTicks(&p.X, ttls)
	p.X.Min, p.X.Max = -0.35, float64(len(ttls))-0.65
	top := math.Max(4, float64(most)*1.12)
	p.Y.Min, p.Y.Max = -top*0.03, top
	p.Y.Tick.Marker = even(0, top, 6)
	grid(p, false, true)
	p.Add(layer(func(c draw.Canvas, x, y func(float64) vg.Length) {
		if at > 0 && at < len(ttls) {
			edge := x(float64(at))
			c.StrokeLine2(dashed(ink()), edge, c.Min.Y, edge, c.Max.Y)
			c.FillText(letters(11, ink()), vg.Point{X: edge + 6, Y: c.Max.Y - 14}, "the knee: "+span(ttls[at]))
		}
		k.lines(c, ttls, x, y)
	}))
	fig.draw = p.Draw
	return fig, nil
}

func (k Knee) lines(c draw.Canvas, ttls []time.Duration, x, y func(float64) vg.Length) {
	for i, s := range k.Series {
		points := slices.Clone(s.At)
		slices.SortFunc(points, func(a, b KneePoint) int { return int(a.TTL - b.TTL) })
		var path []vg.Point
		for _, p := range points {
			// Equal series must not hide each other.
			aside := vg.Length(6 * (float64(i) - float64(len(k.Series)-1)/2))
			path = append(path, vg.Point{X: x(float64(slices.Index(ttls, p.TTL))) + aside, Y: y(float64(p.False))})
		}
		c.StrokeLines(draw.LineStyle{Color: see(hue(i), 0xb0), Width: 1.6}, path)
		for _, at := range path {
			c.DrawGlyphNoClip(draw.GlyphStyle{Color: hue(i), Radius: 4.5, Shape: shape(i)}, at)
		}
	}
}
