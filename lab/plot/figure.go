package plot

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// ErrNothing: there are no measurements to draw.
var ErrNothing = errors.New("plot: no measurements to draw")

// Drawing is data that can be drawn. Figure returns ErrNothing if there is no data.
type Drawing interface {
	Figure() (*Figure, error)
}

// Figure is a figure that can be rendered.
type Figure struct {
	title, note string
	keys        []key
	height      vg.Length
	draw        func(draw.Canvas)
}

// Title states the finding.
func (f *Figure) Title() string { return f.title }

const (
	width = 8.25 * vg.Inch
	dpi   = 120
)

// hue returns the colour of series i, of those by Okabe and Ito.
func hue(i int) color.RGBA {
	all := [...]color.RGBA{
		{0x00, 0x72, 0xB2, 0xff}, // blue
		{0xE6, 0x9F, 0x00, 0xff}, // orange
		{0x00, 0x9E, 0x73, 0xff}, // green
		{0xCC, 0x79, 0xA7, 0xff}, // purple
		{0x56, 0xB4, 0xE9, 0xff}, // sky
		{0x7A, 0x7A, 0x00, 0xff}, // olive
	}
	return all[i%len(all)]
}

func shape(i int) draw.GlyphDrawer {
	all := [...]draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}}
	return all[i%len(all)]
}

func alarm() color.RGBA { return color.RGBA{0xD5, 0x5E, 0x00, 0xff} } // vermillion
func ink() color.RGBA   { return color.RGBA{0x24, 0x29, 0x2F, 0xff} }
func faint() color.RGBA { return color.RGBA{0x57, 0x60, 0x6A, 0xff} }
func rule() color.RGBA  { return color.RGBA{0xD8, 0xDE, 0xE4, 0xff} }

// see makes a colour transparent.
func see(c color.RGBA, alpha uint8) color.NRGBA { return color.NRGBA{c.R, c.G, c.B, alpha} }

// key is an entry of the legend.
type key struct {
	label string
	mark  func(c draw.Canvas, at vg.Point)
}

func dotKey(label string, i int) key {
	return key{label, func(c draw.Canvas, at vg.Point) {
		c.DrawGlyphNoClip(draw.GlyphStyle{Color: hue(i), Radius: 4, Shape: shape(i)}, at)
	}}
}

func lineKey(label string, style draw.LineStyle) key {
	return key{label, func(c draw.Canvas, at vg.Point) { c.StrokeLine2(style, at.X-7, at.Y, at.X+7, at.Y) }}
}

func boxKey(label string, fill color.Color) key {
	return key{label, func(c draw.Canvas, at vg.Point) { box(c, fill, at.X-7, at.Y-4, at.X+7, at.Y+4) }}
}

func box(c draw.Canvas, fill color.Color, x0, y0, x1, y1 vg.Length) {
	c.FillPolygon(fill, []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}})
}

func letters(size vg.Length, c color.Color) text.Style {
	s := text.Style{Color: c, Handler: plot.DefaultTextHandler}
	s.Font.Typeface, s.Font.Variant, s.Font.Size = "Liberation", "Sans", size
	return s
}

// paint draws title, note and legend, and the plot below them.
func (f *Figure) paint(c draw.Canvas) {
	box(c, color.White, c.Min.X, c.Min.Y, c.Max.X, c.Max.Y)
	c = draw.Crop(c, 10, -14, 8, -12)
	y := c.Max.Y
	title := letters(14, ink())
	title.Font.Weight = font.WeightBold
	for _, line := range wrap(title, f.title, c.Max.X-c.Min.X) {
		y -= 15
		c.FillText(title, vg.Point{X: c.Min.X, Y: y}, line)
		y -= 3
	}
	note := letters(10.5, faint())
	for _, line := range wrap(note, f.note, c.Max.X-c.Min.X) {
		y -= 13
		c.FillText(note, vg.Point{X: c.Min.X, Y: y}, line)
		y--
	}
	if len(f.keys) > 0 {
		y -= 18
		y = legend(c, f.keys, y)
	}
	f.draw(draw.Crop(c, 0, 0, 0, y-c.Max.Y-10))
}

func legend(c draw.Canvas, keys []key, y vg.Length) vg.Length {
	style := letters(10.5, ink())
	x := c.Min.X + 8
	for _, k := range keys {
		w := style.Width(k.label) + 32
		if x > c.Min.X+8 && x+w > c.Max.X {
			x, y = c.Min.X+8, y-16
		}
		k.mark(c, vg.Point{X: x, Y: y})
		c.FillText(style, vg.Point{X: x + 12, Y: y - 3.6}, k.label)
		x += w
	}
	return y
}

func wrap(style text.Style, s string, width vg.Length) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(s) {
		if longer := strings.TrimSpace(line + " " + word); line == "" || style.Width(longer) <= width {
			line = longer
			continue
		}
		lines = append(lines, line)
		line = word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// SVG returns the figure as SVG.
func (f *Figure) SVG() ([]byte, error) {
	data, err := f.render(vgsvg.New(width, f.height))
	// Readers without that font get one of the same widths.
	return bytes.ReplaceAll(data, []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arimo,Arial,Helvetica,sans-serif")), err
}

// PNG returns the figure as PNG, 990 pixels wide: a README's column and a little more.
func (f *Figure) PNG() ([]byte, error) {
	return f.render(vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, f.height), vgimg.UseDPI(dpi))})
}

func (f *Figure) render(c vg.CanvasWriterTo) ([]byte, error) {
	f.paint(draw.New(c))
	var b bytes.Buffer
	_, err := c.WriteTo(&b)
	return b.Bytes(), err
}

// Save writes name.svg and name.png into dir.
func (f *Figure) Save(dir, name string) error {
	for extension, render := range map[string]func() ([]byte, error){".svg": f.SVG, ".png": f.PNG} {
		data, err := render()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name+extension), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// ttlAxis names the axis of TTLs, for every engine.
const ttlAxis = "TTL: how long a session outlives its last keep-alive (Raft: the election timeout)"

// axes returns an empty plot in the house style.
func axes(x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Color = faint()
		a.Padding = 0
		a.Width = 0.8
		rotation, xa, ya := a.Label.TextStyle.Rotation, a.Label.TextStyle.XAlign, a.Label.TextStyle.YAlign
		a.Label.TextStyle = letters(11, ink())
		a.Label.TextStyle.Rotation, a.Label.TextStyle.XAlign, a.Label.TextStyle.YAlign = rotation, xa, ya
		a.Label.Padding = 4
		xa, ya = a.Tick.Label.XAlign, a.Tick.Label.YAlign
		a.Tick.Label = letters(10.5, ink())
		a.Tick.Label.XAlign, a.Tick.Label.YAlign = xa, ya
		a.Tick.Length = 4
		a.Tick.Color = faint()
	}
	p.X.Label.Text, p.Y.Label.Text = x, y
	return p
}

// grid adds faint lines behind the data.
func grid(p *plot.Plot, vertical, horizontal bool) {
	g := plotter.NewGrid()
	g.Vertical, g.Horizontal = draw.LineStyle{}, draw.LineStyle{}
	line := draw.LineStyle{Color: rule(), Width: 0.7}
	if vertical {
		g.Vertical = line
	}
	if horizontal {
		g.Horizontal = line
	}
	p.Add(g)
}

// layer is a Plotter made of a function.
type layer func(c draw.Canvas, x, y func(float64) vg.Length)

func (l layer) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	l(c, x, y)
}

func dashed(c color.Color) draw.LineStyle {
	return draw.LineStyle{Color: c, Width: 1.4, Dashes: []vg.Length{5, 3}}
}

// numbered returns ticks at 0, 1, 2, … with labels.
func numbered(labels []string) plot.ConstantTicks {
	ticks := make(plot.ConstantTicks, len(labels))
	for i, l := range labels {
		ticks[i] = plot.Tick{Value: float64(i), Label: l}
	}
	return ticks
}

// logarithmic makes an axis logarithmic, with ticks at 1, 2 and 5 of every decade. Values are
// drawn as math.Log10. (plot.LogScale puts the label of the axis outside the figure.)
func logarithmic(a *plot.Axis, from, to float64) {
	var ticks plot.ConstantTicks
	for e := math.Floor(math.Log10(from)); e <= math.Ceil(math.Log10(to)); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= from*0.999 && v <= to*1.001 {
				ticks = append(ticks, plot.Tick{Value: math.Log10(v), Label: plain(v)})
			}
		}
	}
	a.Min, a.Max = math.Log10(from), math.Log10(to)
	a.Tick.Marker = ticks
}

// even returns about n ticks at round distances from a to b.
func even(a, b float64, n int) plot.ConstantTicks {
	step := math.Pow(10, math.Floor(math.Log10((b-a)/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if (b-a)/(step*m) <= float64(n) {
			step *= m
			break
		}
	}
	var ticks plot.ConstantTicks
	for i := math.Ceil(a / step); i*step <= b; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: plain(i * step)})
	}
	return ticks
}

// ttlTicks labels an axis with TTLs.
func ttlTicks(a *plot.Axis, ttls []time.Duration) {
	labels := make([]string, len(ttls))
	for i, t := range ttls {
		labels[i] = span(t)
	}
	a.Tick.Marker = numbered(labels)
}

func plain(v float64) string {
	if v == 0 {
		return "0" // not -0
	}
	return fmt.Sprintf("%.4g", v)
}

// span writes a duration with a suitable unit.
func span(d time.Duration) string {
	switch a := d.Abs(); {
	case a >= 10*time.Second:
		return fmt.Sprintf("%.3g s", math.Round(d.Seconds()*10)/10)
	case a >= time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case a >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	case a >= time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	case a == 0:
		return "0"
	}
	return fmt.Sprintf("%.0f µs", d.Seconds()*1e6)
}
