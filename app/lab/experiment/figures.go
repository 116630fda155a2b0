package experiment

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenurehq/tenure/app/lab/plot"
	"github.com/tenurehq/tenure/clock"
)

// draw makes the pictures of a result, beside it. A picture that cannot be made is told
// and takes nothing from the result.
func (r Result) draw(say func(string)) {
	note := fmt.Sprintf("%s, seed %d, %s", r.Command, r.Seed, r.BeganAt.Format(time.DateOnly))
	save := func(name string, fig *plot.Figure, err error) {
		if err == nil {
			err = fig.Save(r.Dir, name)
		}
		if err != nil && !errors.Is(err, plot.ErrNothing) {
			say("the picture " + name + " cannot be made: " + err.Error())
		}
	}
	for _, o := range r.Outcomes {
		fig, err := o.timeline(o.Name + "; " + note).Figure()
		save("timeline-"+strings.ReplaceAll(o.Name, "/", "-"), fig, err)
	}
	if r.figure != nil {
		fig, err := r.figure(r.Outcomes, note).Figure()
		save("figure", fig, err)
	}
}

// figure is something that can be drawn.
type figure interface {
	Figure() (*plot.Figure, error)
}

func drawGaps(all []Outcome, note string) figure {
	g := plot.Gaps{Note: note}
	for _, o := range all {
		gaps, _ := gapsOf(o)
		for _, kind := range []string{stepDown, transfer} {
			g.Series = append(g.Series, plot.GapSeries{Name: o.Name + " " + kind, Samples: gaps[kind]})
		}
	}
	return g
}

func drawFailovers(all []Outcome, note string) figure {
	f := plot.Failovers{Note: note}
	at := map[string]int{}
	for _, o := range all {
		i, ok := at[o.Engine]
		if !ok {
			i = len(f.Series)
			at[o.Engine] = i
			f.Series = append(f.Series, plot.FailoverSeries{Engine: o.Engine})
		}
		writes, _ := killed(o)
		f.Series[i].At = append(f.Series[i].At, plot.FailoverPoint{TTL: o.TTL, Bound: o.Report.Run.CrashBound(0), Samples: writes})
	}
	return f
}

// timeline is who believed and who took effect.
func (o Outcome) timeline(note string) plot.Timeline {
	begin := o.Report.Run.At
	since := func(i clock.Instant) time.Duration { return max(0, i.Sub(begin)) }
	t := plot.Timeline{Note: note}
	for _, x := range o.Report.Terms {
		if x.Began > 0 {
			t.Believed = append(t.Believed, plot.Stretch{Node: x.Node, Token: uint64(x.Token), From: since(x.Began), To: since(x.Ended)})
			t.Length = max(t.Length, since(x.Ended))
		}
		for _, at := range x.RefusedAt {
			t.Refused = append(t.Refused, plot.Mark{Node: x.Node, At: since(at)})
		}
	}
	for _, e := range o.Effects {
		t.Effect = append(t.Effect, plot.Stretch{Node: e.Node, Token: uint64(e.Token), From: since(e.First), To: since(e.Last)})
		t.Length = max(t.Length, since(e.Last))
	}
	for _, f := range o.Report.Faults {
		t.Faults = append(t.Faults, plot.Shade{Name: f.Name, From: since(f.Begun), To: since(f.Healed)})
	}
	return t
}
