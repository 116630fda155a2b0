package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	fleetclient "github.com/tenurehq/tenure/reference/client"
)

// answer is the output for programs.
type answer struct {
	Fleet  string        `json:"fleet"`
	Faults []chaos.Fault `json:"faults"`
	// After is the leader when it is over, AtNS when that was seen.
	After *inspect.Target `json:"leader_after,omitempty"`
	AtNS  clock.Instant   `json:"leader_after_at,omitempty"`
	Error string          `json:"error,omitempty"`
}

// timedWriter writes lines with their time: the time of day and the seconds since the start, both
// from one clock.
type timedWriter struct {
	mu    sync.Mutex
	w     io.Writer
	start clock.Instant
	wall  time.Time
}

func newTimedWriter(w io.Writer) *timedWriter {
	return &timedWriter{w: w, start: clock.System().Now(), wall: time.Now()}
}

func (t *timedWriter) say(at clock.Instant, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := at.Sub(t.start)
	_, _ = fmt.Fprintf(t.w, "%s %+9.3fs  %s\n", t.wall.Add(d).Format("15:04:05.000"), d.Seconds(), what)
}

func (s *settings) run(ctx context.Context, stdout, stderr io.Writer) error {
	if s.verb == "list" {
		return s.list(ctx, stdout)
	}
	f, err := chaos.Open(s.fleet)
	if err != nil {
		return err
	}
	tell := newTimedWriter(stderr)
	f.Event = tell.say
	if s.verb == "heal" {
		return f.Heal(ctx)
	}
	out := answer{Fleet: f.Path()}
	out.Faults, err = s.faults(ctx, f)
	if ctx.Err() == nil && len(out.Faults) > 0 && !errors.Is(err, inspect.ErrNoLeader) {
		l, lerr := f.Leader(ctx, 0)
		if lerr == nil {
			out.After, out.AtNS = &l, clock.System().Now()
			tell.say(out.AtNS, fmt.Sprintf("%s leads with token %d%s", l.ID, l.Token, s.took(ctx, l)))
		}
		err = errors.Join(err, lerr)
	}
	if s.output == "json" {
		if err != nil {
			out.Error = err.Error()
		}
		if out.Faults == nil {
			out.Faults = []chaos.Fault{}
		}
		return errors.Join(err, json.NewEncoder(stdout).Encode(out))
	}
	for _, fault := range out.Faults {
		if fault.Evidence == "" {
			continue
		}
		whom := fault.Target
		if fault.Token > 0 {
			whom += fmt.Sprintf(" token %d", fault.Token)
		}
		_, werr := fmt.Fprintf(stdout, "%s %s: begun %+.3fs, healed %+.3fs: %s\n", fault.Name, whom,
			fault.Begun.Sub(tell.start).Seconds(), fault.Healed.Sub(tell.start).Seconds(), fault.Evidence)
		err = errors.Join(err, werr)
	}
	return err
}

// took says how long the failover to a leader took and why, after the old one was killed. The new
// one records that after its first answer.
func (s *settings) took(ctx context.Context, leader inspect.Target) (details string) {
	if s.verb != chaos.KillLeader {
		return ""
	}
	c, err := fleetclient.New(fleetclient.Config{URLs: []string{leader.URL}, Timeout: time.Second})
	if err != nil {
		return ""
	}
	defer c.Close()
	inspect.Poll(ctx, time.Second, inspect.PollEvery, func() bool {
		details = lab.FailoverDetails(ctx, c, leader.Token)
		return details != ""
	})
	return details
}

// faults injects the faults of the command and returns them.
func (s *settings) faults(ctx context.Context, f *chaos.Fleet) ([]chaos.Fault, error) {
	spec := chaos.Spec{
		Kind: s.verb, For: s.length, From: chaos.From(s.from), Way: chaos.Way(s.way), PPM: s.ppm, Between: s.between, Seed: s.seed,
		To: s.to, At: s.at, Trigger: s.trigger, Every: s.every,
	}
	if s.what != "" {
		spec.Targets = strings.Split(s.what, ",")
	}
	ms := time.Duration(s.ms) * time.Millisecond
	if s.verb == chaos.SkewLeader {
		spec.Offset, ms = ms, 0
	}
	spec.For = cmp.Or(spec.For, ms, time.Duration(s.secs*float64(time.Second)))
	if s.verb == "churn" {
		return f.Churn(ctx, spec)
	}
	fault, err := f.Inject(ctx, spec)
	if fault.Begun == 0 {
		return nil, err
	}
	return []chaos.Fault{fault}, err
}

func inEffect(n inspect.NodeSurvey) string { return cmp.Or(strings.Join(n.Standing, "; "), "none") }

// list shows the fleet, if there is one, and the commands.
func (s *settings) list(ctx context.Context, stdout io.Writer) error {
	var survey *inspect.Survey
	f, err := chaos.Open(s.fleet)
	if err == nil {
		var found inspect.Survey
		if found, err = f.Survey(ctx); err == nil {
			survey = &found
		}
	}
	if s.output == "json" {
		names := []string{}
		for _, v := range verbs() {
			names = append(names, v.name)
		}
		return errors.Join(err, json.NewEncoder(stdout).Encode(map[string]any{"fleet": survey, "verbs": names}))
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	if survey != nil {
		_, _ = fmt.Fprintf(stdout, "group %s on %s, TTL %v, %s\n", survey.Group, survey.Backend, time.Duration(survey.TTLMS)*time.Millisecond, survey.Path)
		_, _ = fmt.Fprintln(table, "PROCESS\tPID\tROLE\tTOKEN\tFAULTS IN EFFECT")
		for _, n := range survey.Nodes {
			_, _ = fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\n", n.ID, n.PID, cmp.Or(string(n.Role), "no answer"), n.Token, inEffect(n))
		}
		for _, o := range survey.Others {
			_, _ = fmt.Fprintf(table, "%s\t%d\t\t\t%s\n", o.ID, o.PID, inEffect(o))
		}
		_, _ = fmt.Fprintln(table)
	}
	for _, v := range verbs() {
		_, _ = fmt.Fprintf(table, "%s\t%s\n", v.name, v.what)
	}
	return errors.Join(err, table.Flush())
}
