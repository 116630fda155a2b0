package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/lab/load"
	"github.com/tenurehq/tenure/reference/client"
	"github.com/tenurehq/tenure/server/cli"
)

type loadFlags struct {
	cfg     load.Config
	fleet   string
	rate    string
	history string
	group   string
	bare    bool
	quiet   bool
	out     output

	maxP99  time.Duration
	minRate float64
	maxErrs int64
}

func newLoad() *cobra.Command {
	var l loadFlags
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Take numbers from a fleet and say how long that took",
		Long: `Call POST /next of the leader, as fast as it answers or at a rate. At a rate the
latency of a call is counted from when it was due. The run is bounded in time and, with
--count, in calls. A call whose outcome is unknown is counted and never repeated.

With --bare a handler that answers a constant, a process of its own, is called; with
--bare and a fleet both are, in turns, and the ratio is told.

Exit code 99: a threshold (--max-p99, --min-rate, --max-errors) was not met, or an
answer went back.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return l.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&l.fleet, "fleet", "", "the fleet file of lab up")
	f.StringSliceVar(&l.cfg.URLs, "url", nil, "URL of a node; may be repeated")
	f.StringVar(&l.rate, "rate", "max", "calls a second, or max: each connection calls again when it was answered")
	f.IntVar(&l.cfg.Connections, "connections", 256, "how many calls can be under way")
	f.DurationVar(&l.cfg.For, "for", 30*time.Second, "how long to begin calls, at most 24h")
	f.Int64Var(&l.cfg.Count, "count", 0, "how many calls to begin at most, 0 is no limit")
	f.IntVar(&l.cfg.N, "n", 1, "how many numbers each call asks for")
	f.DurationVar(&l.cfg.Timeout, "timeout", 2*time.Second, "how long a try may take before its outcome is unknown")
	f.DurationVar(&l.cfg.Patience, "patience", 30*time.Second, "how long a call may look for a leader")
	f.StringVar(&l.history, "history", "", "a new folder for what became of every call, for lab check")
	f.StringVar(&l.group, "group", "billing", "the group, for the history; that of the fleet file if there is one")
	f.BoolVar(&l.bare, "bare", false, "call a handler that answers a constant, for comparison")
	f.BoolVar(&l.quiet, "quiet", false, "no line a second")
	f.DurationVar(&l.maxP99, "max-p99", 0, "fail if the p99 is longer")
	f.Float64Var(&l.minRate, "min-rate", 0, "fail if fewer calls a second were answered")
	f.Int64Var(&l.maxErrs, "max-errors", -1, "fail if more calls got no number")
	l.out.flag(f)
	return cmd
}

// compared is a run against a fleet and a bare handler in turns.
type compared struct {
	Fleet load.Report `json:"fleet"`
	Bare  load.Report `json:"bare"`
	Ratio float64     `json:"ratio"`
}

func (l *loadFlags) run(cmd *cobra.Command) (err error) {
	asJSON, err := l.out.json()
	if err != nil {
		return err
	}
	if err := l.targets(); err != nil {
		return cli.Exit(exitUsage, err)
	}
	if !l.quiet {
		l.cfg.Progress = func(p load.Progress) { _, _ = fmt.Fprintln(cmd.ErrOrStderr(), p) }
	}
	if l.history != "" {
		w, err := check.Create(l.history, "calls", 0)
		if err == nil {
			err = w.Write(experiment.LoadRun(l.group))
		}
		if err != nil {
			return cli.Exit(exitFailure, err)
		}
		l.cfg.Calls = w
		defer func() {
			cerr := w.Close()
			if cerr == nil {
				cerr = check.WriteManifest(l.history)
			}
			if cerr != nil && err == nil {
				err = cli.Exit(exitFailure, cerr)
			}
		}()
	}
	var report load.Report
	var answer any
	var show func(io.Writer) error
	switch {
	case !l.bare:
		report, err = load.Run(cmd.Context(), l.cfg)
		answer, show = report, report.Print
	case len(l.cfg.URLs) == 0:
		report, err = l.alone(cmd)
		answer, show = report, report.Print
	default:
		var c compared
		c, err = l.compare(cmd)
		report, answer, show = c.Fleet, c, c.print
	}
	if err != nil {
		return loadError(err)
	}
	if asJSON {
		err = json.NewEncoder(cmd.OutOrStdout()).Encode(answer)
	} else {
		err = show(cmd.OutOrStdout())
	}
	if err != nil {
		return cli.Exit(exitFailure, err)
	}
	return l.thresholds(report)
}

func (l *loadFlags) targets() error {
	if l.fleet != "" {
		file, err := labapi.ReadFleetFile(l.fleet)
		if err != nil {
			return err
		}
		l.group = file.Group
		for _, n := range file.Nodes {
			l.cfg.URLs = append(l.cfg.URLs, n.URL)
		}
	}
	if l.rate != "max" {
		r, err := strconv.ParseFloat(l.rate, 64)
		if err != nil || r <= 0 {
			return fmt.Errorf("rate: %q: a number above 0, or max", l.rate)
		}
		l.cfg.Rate = r
	}
	valid := l.cfg
	if l.bare && len(valid.URLs) == 0 {
		valid.URLs = []string{"http://127.0.0.1:1"}
	}
	return valid.Validate()
}

func loadError(err error) error {
	if errors.Is(err, client.ErrUnavailable) {
		return cli.Exit(exitUnavailable, err)
	}
	return cli.Exit(exitFailure, err)
}

// alone calls a bare handler only.
func (l *loadFlags) alone(cmd *cobra.Command) (load.Report, error) {
	url, stop, err := startBare(cmd.Context())
	if err != nil {
		return load.Report{}, err
	}
	defer stop()
	cfg := l.cfg
	cfg.URLs, cfg.Bare, cfg.Calls = []string{url}, true, nil
	return load.Run(cmd.Context(), cfg)
}

// turns is how often each of the two is called: what a machine does besides is not the
// same from one half of a run to the other.
const turns = 3

// compare calls both in turns; the report is of the turn in the middle by rate.
func (l *loadFlags) compare(cmd *cobra.Command) (compared, error) {
	url, stop, err := startBare(cmd.Context())
	if err != nil {
		return compared{}, err
	}
	defer stop()
	part := l.cfg
	part.For /= 2 * turns
	if part.Count > 0 {
		part.Count = max(1, part.Count/turns)
	}
	bare := part
	bare.URLs, bare.Bare, bare.Calls = []string{url}, true, nil
	var fleets, bares []load.Report
	for range turns {
		for _, of := range []struct {
			cfg  load.Config
			into *[]load.Report
		}{{bare, &bares}, {part, &fleets}} {
			r, err := load.Run(cmd.Context(), of.cfg)
			if err == nil && cmd.Context().Err() != nil {
				err = context.Cause(cmd.Context())
			}
			if err != nil {
				return compared{}, err
			}
			*of.into = append(*of.into, r)
		}
	}
	c := compared{Fleet: middle(fleets), Bare: middle(bares)}
	c.Ratio = c.Fleet.CallsPerSec / c.Bare.CallsPerSec
	return c, nil
}

// middle is the report with the median rate. Trouble in any of them is kept.
func middle(all []load.Report) load.Report {
	slices.SortFunc(all, func(a, b load.Report) int { return cmp.Compare(a.CallsPerSec, b.CallsPerSec) })
	at := len(all) / 2
	m := all[at]
	for i, r := range all {
		if i != at {
			m.Unknown, m.GaveUp, m.Refused, m.Disordered = m.Unknown+r.Unknown, m.GaveUp+r.GaveUp, m.Refused+r.Refused, m.Disordered+r.Disordered
		}
	}
	return m
}

func (c compared) print(w io.Writer) error {
	if _, err := fmt.Fprintln(w, "fleet:"); err != nil {
		return err
	}
	if err := c.Fleet.Print(w); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w, "bare handler:"); err != nil {
		return err
	}
	if err := c.Bare.Print(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "ratio: %.2f (medians of %d turns each)\n", c.Ratio, turns)
	return err
}

func (l *loadFlags) thresholds(r load.Report) error {
	var all error
	short := func(format string, args ...any) { all = errors.Join(all, fmt.Errorf(format, args...)) }
	if p := r.At(99); l.maxP99 > 0 && p > l.maxP99 {
		short("p99 is %v, at most %v was wanted", p, l.maxP99)
	}
	if l.minRate > 0 && r.CallsPerSec < l.minRate {
		short("%.0f calls a second were answered, at least %.0f were wanted", r.CallsPerSec, l.minRate)
	}
	if n := r.Errors(); l.maxErrs >= 0 && n > l.maxErrs {
		short("%d calls got no number, at most %d was wanted", n, l.maxErrs)
	}
	if r.Disordered > 0 {
		short("%d answers went back: a number or a token was not above the one before it", r.Disordered)
	}
	if all != nil {
		return cli.Exit(exitThreshold, all)
	}
	return nil
}
