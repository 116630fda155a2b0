package experiment

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/plot"
)

// Picture is a drawing of a result. Trial is empty for the experiment's own.
type Picture struct {
	Name, Trial string
	*plot.Figure
}

// Pictures draws a result: the experiment's own picture, if it has one, and who led in
// each trial. What nothing was measured for has none. The error names those that could
// not be made; the others are there.
func (r Result) Pictures() ([]Picture, error) {
	note := fmt.Sprintf("%s, %s, %s", r.Command, r.Machine, r.BeganAt.Format(time.DateOnly))
	var all []Picture
	var failed error
	add := func(name, trial string, of figure) {
		switch fig, err := of.Figure(); {
		case err == nil:
			all = append(all, Picture{name, trial, fig})
		case !errors.Is(err, plot.ErrNothing):
			failed = errors.Join(failed, fmt.Errorf("the picture %s cannot be made: %w", name, err))
		}
	}
	own, more := r.figure, r.figures
	if found, err := Find(r.Name); err == nil && own == nil {
		own, more = found[0].figure, found[0].figures // a result that was read has no functions
	}
	if own != nil {
		add("figure", "", own(r.Outcomes, note))
	}
	if more != nil {
		drawn := more(r.Outcomes, note)
		for _, name := range slices.Sorted(maps.Keys(drawn)) {
			add(name, "", drawn[name])
		}
	}
	for _, o := range r.Outcomes {
		add("timeline-"+strings.ReplaceAll(o.Name, "/", "-"), o.Name, o.timeline(o.Name+"; "+note))
	}
	return all, failed
}

// draw leaves the pictures beside the result. One that cannot be made is told and takes
// nothing from the result.
func (r Result) draw(say func(string)) {
	all, err := r.Pictures()
	for _, p := range all {
		err = errors.Join(err, p.Save(r.Dir, p.Name))
	}
	if err != nil {
		say(err.Error())
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
			g.Series = append(g.Series, plot.Series{Name: o.Name + " " + kind, Samples: gaps[kind]})
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

// mostTerms is how many terms of a trial that repeats itself are drawn.
const mostTerms = 13

// timeline is who believed and who took effect.
func (o Outcome) timeline(note string) plot.Timeline {
	begin := o.Report.Run.At
	since := func(i clock.Instant) time.Duration { return max(0, i.Sub(begin)) }
	t := plot.Timeline{Note: note, Unfenced: o.Unfenced}
	if len(o.Plant) > 0 {
		t.Note += "; planted bug: " + strings.Join(o.Plant, ", ")
	}
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
	if terms := o.Report.Terms; len(o.Rounds) >= mostTerms && len(terms) > mostTerms {
		t.Show = since(terms[mostTerms-1].Ended)
	}
	for _, f := range o.Report.Faults {
		t.Faults = append(t.Faults, plot.Shade{Name: f.Name, From: since(f.Begun), To: since(f.Healed)})
	}
	return t
}
