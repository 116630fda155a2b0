package plot

import (
	"slices"
	"time"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Series is measurements of one kind.
type Series struct {
	Name    string
	Samples []time.Duration
}

// maxDots is how many dots stand for one set of measurements: the extremes, and the
// others evenly by rank.
const maxDots = 400

func thin(sorted []time.Duration) []time.Duration {
	if len(sorted) <= maxDots {
		return sorted
	}
	few := make([]time.Duration, maxDots)
	for i := range few {
		few[i] = sorted[i*(len(sorted)-1)/(maxDots-1)]
	}
	return few
}

// quantile is the smallest measurement that a fraction q does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func ascending(samples []time.Duration) []time.Duration {
	s := slices.Clone(samples)
	slices.Sort(s)
	return s
}

// swarm draws measurements as dots beside each other. at gives the place of a
// measurement, aside how far from the middle: from -1 to 1, the same at every drawing.
func swarm(c draw.Canvas, samples []time.Duration, i int, at func(d time.Duration, aside float64) vg.Point) {
	style := draw.GlyphStyle{Color: see(hue(i), 0x90), Radius: 2.6, Shape: shape(i)}
	for n, d := range thin(samples) {
		// Steps of the golden ratio spread evenly without being a pattern.
		aside := 2*fraction(0.6180339887*float64(n)) - 1
		c.DrawGlyphNoClip(style, at(d, aside))
	}
}

func fraction(x float64) float64 { return x - float64(int(x)) }
