package plot

import (
	"math"
	"slices"
	"time"

	"github.com/tenurehq/tenure/lab/measure"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Series is a named series of measurements.
type Series struct {
	Name    string
	Samples []time.Duration
}

// maxDots is how many dots are drawn for one series: the extremes, and the others evenly by
// rank.
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

func ascending(samples []time.Duration) measure.Series {
	return slices.Sorted(slices.Values(samples))
}

// dots draws measurements as dots beside each other. at returns the place of a measurement;
// aside is its distance from the middle, from -1 to 1, always the same.
func dots(c draw.Canvas, samples []time.Duration, i int, at func(d time.Duration, aside float64) vg.Point) {
	style := draw.GlyphStyle{Color: see(hue(i), 0x90), Radius: 2.6, Shape: shape(i)}
	for n, d := range thin(samples) {
		// Steps of the golden ratio spread evenly without a pattern.
		_, fraction := math.Modf(0.6180339887 * float64(n))
		c.DrawGlyphNoClip(style, at(d, 2*fraction-1))
	}
}
