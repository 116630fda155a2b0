package plot

import (
	"cmp"
	"fmt"
	"image/color"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Timeline shows who led during a run: above which node believed that it leads, below whose
// writes took effect. All times count from the beginning of the run.
type Timeline struct {
	Note   string
	Length time.Duration
	// Show, if set, is how much of the run is drawn. The title is about all of it.
	Show time.Duration
	// Unfenced: the ledger's fence was off.
	Unfenced         bool
	Believed, Effect []Stretch
	Refused          []Mark
	Faults           []Shade
}

// Stretch is a time in which a node led with a token.
type Stretch struct {
	Node     string
	Token    uint64
	From, To time.Duration
}

// Mark is the moment of a refused write.
type Mark struct {
	Node string
	At   time.Duration
}

// Shade is a fault.
type Shade struct {
	Name     string
	From, To time.Duration
}

// maxShadeLabels is up to how many faults are named in the figure.
const maxShadeLabels = 8

// Figure draws the timeline.
func (t Timeline) Figure() (*Figure, error) {
	if len(t.Believed) == 0 && len(t.Effect) == 0 || t.Length <= 0 {
		return nil, ErrNothing
	}
	believed, effect := t.overlaps(t.Believed), t.overlaps(t.Effect)
	title := fmt.Sprintf("At every moment at most one leader took effect, over %s", many(len(t.Effect), "term"))
	if n := len(t.Faults); n > 0 {
		title += " and " + many(n, "fault")
	}
	switch {
	case len(effect) > 0:
		title = fmt.Sprintf("Two leaders took effect at once (%s)", times(len(effect)))
	case len(believed) > 0:
		title = fmt.Sprintf("Two nodes believed that they lead (%s), yet only one took effect at any moment", times(len(believed)))
	}
	if t.Unfenced {
		title = "With the fence off: " + strings.ToLower(title[:1]) + title[1:]
	}
	if n := len(t.Refused); n > 0 {
		title += "; " + many(n, "late write") + " refused"
	}
	if t.Show > 0 && t.Show < t.Length {
		t.Note += fmt.Sprintf("; drawn are the first %s of %s", span(t.Show), span(t.Length))
		t.Length, believed, effect = t.Show, until(believed, t.Show), until(effect, t.Show)
		t.Believed, t.Effect = until(t.Believed, t.Show), until(t.Effect, t.Show)
		t.Refused = slices.DeleteFunc(slices.Clone(t.Refused), func(m Mark) bool { return m.At > t.Show })
		t.Faults = slices.DeleteFunc(slices.Clone(t.Faults), func(f Shade) bool { return f.From > t.Show })
	}
	nodes := t.nodes()
	fig := &Figure{title: title, note: t.Note, height: vg.Length(2.1+0.56*float64(len(nodes))) * vg.Inch}
	for i, n := range nodes {
		fig.keys = append(fig.keys, boxKey(n, hue(i)))
	}
	if len(t.Faults) > 0 {
		fig.keys = append(fig.keys, boxKey("fault", shadow()))
	}
	if len(believed) > 0 || len(effect) > 0 {
		fig.keys = append(fig.keys, key{"two at once", func(c draw.Canvas, at vg.Point) { frame(c, at.X-7, at.Y-4, at.X+7, at.Y+4) }})
	}
	if len(t.Refused) > 0 {
		fig.keys = append(fig.keys, key{"write refused", func(c draw.Canvas, at vg.Point) { cross(c, at) }})
	}
	above := t.panel(nodes, t.Believed, believed, "believes", false)
	below := t.panel(nodes, t.Effect, effect, "takes effect", true)
	fig.draw = func(c draw.Canvas) {
		if t.named() {
			c = draw.Crop(c, 0, 0, 0, -10)
		}
		const axis = 36 // height of the lower panel's axis
		cut := (c.Max.Y - c.Min.Y + axis) / 2
		tiles := plot.Align([][]*plot.Plot{{above}, {below}}, draw.Tiles{Rows: 2, Cols: 1}, c)
		top, bottom := tiles[0][0], tiles[1][0]
		top.Min.Y, top.Max.Y = c.Min.Y+cut, c.Max.Y
		bottom.Min.Y, bottom.Max.Y = c.Min.Y, c.Min.Y+cut-8
		above.Draw(top)
		below.Draw(bottom)
	}
	return fig, nil
}

// until cuts stretches off at end.
func until(all []Stretch, end time.Duration) []Stretch {
	var some []Stretch
	for _, s := range all {
		if s.From < end {
			s.To = min(s.To, end)
			some = append(some, s)
		}
	}
	return some
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func shadow() color.Color { return color.NRGBA{0x57, 0x60, 0x6A, 0x38} }

func (t Timeline) named() bool { return len(t.Faults) > 0 && len(t.Faults) <= maxShadeLabels }

func (t Timeline) nodes() []string {
	var nodes []string
	for _, s := range append(slices.Clone(t.Believed), t.Effect...) {
		if !slices.Contains(nodes, s.Node) {
			nodes = append(nodes, s.Node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// overlaps returns the times in which two nodes led, joined.
func (t Timeline) overlaps(all []Stretch) []Stretch {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Stretch) int { return cmp.Compare(a.From, b.From) })
	var both []Stretch
	for i, a := range all {
		for _, b := range all[i+1:] {
			if b.From >= a.To {
				break
			}
			if b.Node == a.Node {
				continue
			}
			from, to := b.From, min(a.To, b.To)
			if n := len(both); n > 0 && from <= both[n-1].To {
				both[n-1].To = max(both[n-1].To, to)
			} else {
				both = append(both, Stretch{From: from, To: to})
			}
		}
	}
	return both
}

func (t Timeline) panel(nodes []string, all, both []Stretch, what string, last bool) *plot.Plot {
	p := axes("", what)
	p.X.Min, p.X.Max = 0, t.Length.Seconds()
	ticks := even(0, t.Length.Seconds(), 10)
	if last {
		p.X.Label.Text = "time since the run began (s)"
	} else {
		for i := range ticks {
			ticks[i].Label = ""
		}
		p.X.Tick.Length = 0
	}
	p.X.Tick.Marker = ticks
	p.Y.Min, p.Y.Max = -0.6, float64(len(nodes))-0.4
	labels := slices.Clone(nodes)
	slices.Reverse(labels)
	p.Y.Tick.Marker = numbered(labels)
	p.Y.Tick.Length = 0
	p.Add(layer(func(c draw.Canvas, x, y func(float64) vg.Length) {
		t.shade(c, x, !last)
		lane := func(node string) float64 { return float64(len(nodes) - 1 - slices.Index(nodes, node)) }
		for _, s := range all {
			bar(c, s, hue(slices.Index(nodes, s.Node)), x(s.From.Seconds()), x(s.To.Seconds()), y(lane(s.Node)-0.32), y(lane(s.Node)+0.32))
		}
		for _, b := range both {
			// A narrow frame would hide its content.
			const edge, tick = 6, 5
			if from, to := x(b.From.Seconds()), x(b.To.Seconds()); to-from < edge {
				box(c, alarm(), from, c.Max.Y-tick, max(to, from+1.5), c.Max.Y)
			} else {
				frame(c, from, c.Min.Y+1, to, c.Max.Y-1)
			}
		}
		if last {
			for _, m := range t.Refused {
				if slices.Contains(nodes, m.Node) {
					cross(c, vg.Point{X: x(m.At.Seconds()), Y: y(lane(m.Node))})
				}
			}
		}
	}))
	return p
}

func (t Timeline) shade(c draw.Canvas, x func(float64) vg.Length, named bool) {
	free := c.Min.X
	for _, f := range t.Faults {
		from, to := x(f.From.Seconds()), x(min(f.To, t.Length).Seconds())
		box(c, shadow(), from, c.Min.Y, max(to, from+1.2), c.Max.Y)
		if !named || !t.named() {
			continue
		}
		// A name that would cover another one is left out: the report lists them all.
		style := letters(9.5, faint())
		if at := min(from, c.Max.X-style.Width(f.Name)); at >= free {
			c.FillText(style, vg.Point{X: at, Y: c.Max.Y + 3}, f.Name)
			free = at + style.Width(f.Name) + 6
		}
	}
}

// bar draws a stretch, with its token if there is room.
func bar(c draw.Canvas, s Stretch, fill color.RGBA, x0, x1, y0, y1 vg.Length) {
	x1 = max(x1, x0+0.8)
	box(c, fill, x0, y0, x1, y1)
	label := letters(9.5, color.White)
	// White is not readable on light colours.
	if int(fill.R)*3+int(fill.G)*6+int(fill.B) > 1250 {
		label.Color = ink()
	}
	label.XAlign, label.YAlign = draw.XCenter, draw.YCenter
	for _, words := range []string{fmt.Sprintf("token %d", s.Token), fmt.Sprint(s.Token)} {
		if label.Width(words)+6 < x1-x0 {
			c.FillText(label, vg.Point{X: (x0 + x1) / 2, Y: (y0+y1)/2 + 1.2}, words)
			return
		}
	}
}

func frame(c draw.Canvas, x0, y0, x1, y1 vg.Length) {
	x1 = max(x1, x0+1.5)
	c.StrokeLines(draw.LineStyle{Color: alarm(), Width: 1.6}, []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}, {X: x0, Y: y0}})
}

func cross(c draw.Canvas, at vg.Point) {
	style := draw.LineStyle{Color: alarm(), Width: 2.2}
	c.StrokeLine2(style, at.X-4, at.Y-4, at.X+4, at.Y+4)
	c.StrokeLine2(style, at.X-4, at.Y+4, at.X+4, at.Y-4)
}
