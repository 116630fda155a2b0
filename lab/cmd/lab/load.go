package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/history"
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
		Short: "Take numbers from a fleet and measure the latency",
		Long: `Call POST /next of the leader, as fast as it answers or at a rate. At a rate the latency
of a call counts from when it was due. --for and --count limit the run. A call whose
outcome is unknown is counted and never repeated.

With --bare call a handler that answers a constant, in its own process; with --bare and a
fleet call both in turns and print the ratio.

Exit code 99: a bar (--max-p99, --min-rate, --max-errors) was not met, or an answer was
not above the one before it.`,
		Args: cobra.NoArgs,
		RunE: l.run,
	}
	f := cmd.Flags()
	f.StringVar(&l.fleet, "fleet", "", "the fleet file of lab up")
	f.StringSliceVar(&l.cfg.URLs, "url", nil, "URL of a node; may be repeated")
	f.StringVar(&l.rate, "rate", "max", "calls a second, or max: each connection calls again when it was answered")
	f.IntVar(&l.cfg.Connections, "connections", 256, "maximum number of calls under way")
	f.DurationVar(&l.cfg.For, "for", 30*time.Second, "how long to begin calls, at most 24h")
	f.Int64Var(&l.cfg.Count, "count", 0, "maximum number of calls, 0 is no limit")
	f.IntVar(&l.cfg.N, "n", 1, "how many numbers each call asks for")
	f.DurationVar(&l.cfg.Timeout, "timeout", 2*time.Second, "timeout of one try; after it the outcome is unknown")
	f.DurationVar(&l.cfg.Patience, "patience", 30*time.Second, "how long a call looks for a leader")
	f.StringVar(&l.history, "history", "", "new folder for the outcome of every call, for lab check")
	f.StringVar(&l.group, "group", "billing", "the group, for the history; that of the fleet file if there is one")
	f.BoolVar(&l.bare, "bare", false, "call a handler that answers a constant, for comparison")
	f.BoolVar(&l.quiet, "quiet", false, "do not report progress every second")
	f.DurationVar(&l.maxP99, "max-p99", 0, "fail if the p99 is longer")
	f.Float64Var(&l.minRate, "min-rate", 0, "fail if fewer calls a second were answered")
	f.Int64Var(&l.maxErrs, "max-errors", -1, "fail if more calls got no number")
	l.out.flag(f)
	return cmd
}

func (l *loadFlags) run(cmd *cobra.Command, _ []string) (err error) {
	if err := l.out.validate(); err != nil {
		return err
	}
	if err := l.targets(); err != nil {
		return cli.Exit(exitUsage, err)
	}
	if !l.quiet {
		l.cfg.Progress = func(p load.Progress) { cli.Say(cmd, "%v", p) }
	}
	if l.history != "" {
		w, err := history.Create(l.history, "calls")
		if err == nil {
			err = w.Write(catalogue.LoadRun(l.group))
		}
		if err != nil {
			return err
		}
		l.cfg.Calls = w
	}
	report, answer, text, err := l.load(cmd.Context())
	if w := l.cfg.Calls; w != nil {
		if err = errors.Join(err, w.Close()); err == nil {
			err = history.WriteManifest(l.history)
		}
	}
	if errors.Is(err, client.ErrUnavailable) {
		return cli.Exit(exitUnavailable, err)
	}
	if err != nil {
		return err
	}
	if err := l.out.write(cmd.OutOrStdout(), answer, text); err != nil {
		return err
	}
	return l.thresholds(report)
}

// targets reads the fleet file and the rate, and validates the configuration.
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
			return fmt.Errorf("rate %q: use a number above 0, or max", l.rate)
		}
		l.cfg.Rate = r
	}
	valid := l.cfg
	if l.bare && len(valid.URLs) == 0 {
		valid.URLs = []string{"http://127.0.0.1:1"}
	}
	return valid.Validate()
}

// compared is the result of calling a fleet and a bare handler in turns.
type compared struct {
	Fleet load.Report `json:"fleet"`
	Bare  load.Report `json:"bare"`
	Ratio float64     `json:"ratio"`
}

// turns is how often each of the two is called, because the machine may be busy in one half
// of the run and not in the other.
const turns = 3

// load calls the fleet, the bare handler, or both in turns. Of several turns it reports the
// one with the median rate.
func (l *loadFlags) load(ctx context.Context) (report load.Report, answer any, text func(io.Writer) error, err error) {
	if !l.bare {
		report, err = load.Run(ctx, l.cfg)
		return report, report, report.Print, err
	}
	url, stop, err := startBare(ctx)
	if err != nil {
		return report, nil, nil, err
	}
	defer stop()
	bare := l.cfg
	bare.URLs, bare.Bare, bare.Calls = []string{url}, true, nil
	if len(l.cfg.URLs) == 0 {
		report, err = load.Run(ctx, bare)
		return report, report, report.Print, err
	}
	reports := [2][]load.Report{}
	for range turns {
		for i, cfg := range []load.Config{l.cfg, bare} {
			cfg.For /= 2 * turns
			if cfg.Count > 0 {
				cfg.Count = max(1, cfg.Count/turns)
			}
			r, err := load.Run(ctx, cfg)
			if err == nil {
				err = context.Cause(ctx)
			}
			if err != nil {
				return report, nil, nil, err
			}
			reports[i] = append(reports[i], r)
		}
	}
	c := compared{Fleet: median(reports[0]), Bare: median(reports[1])}
	c.Ratio = c.Fleet.CallsPerSec / c.Bare.CallsPerSec
	return c.Fleet, c, c.print, nil
}

// median returns the report with the median rate, with the failures of all.
func median(all []load.Report) load.Report {
	slices.SortFunc(all, func(a, b load.Report) int { return cmp.Compare(a.CallsPerSec, b.CallsPerSec) })
	m := all[len(all)/2]
	m.Unknown, m.GaveUp, m.Refused, m.Disordered = 0, 0, 0, 0
	for _, r := range all {
		m.Unknown, m.GaveUp, m.Refused, m.Disordered = m.Unknown+r.Unknown, m.GaveUp+r.GaveUp, m.Refused+r.Refused, m.Disordered+r.Disordered
	}
	return m
}

func (c compared) print(w io.Writer) error {
	var b strings.Builder
	b.WriteString("fleet:\n")
	err := c.Fleet.Print(&b)
	b.WriteString("bare handler:\n")
	err = errors.Join(err, c.Bare.Print(&b))
	fmt.Fprintf(&b, "ratio: %.2f (medians of %d turns each)\n", c.Ratio, turns)
	_, werr := io.WriteString(w, b.String())
	return errors.Join(err, werr)
}

func (l *loadFlags) thresholds(r load.Report) error {
	var all error
	short := func(format string, args ...any) { all = errors.Join(all, fmt.Errorf(format, args...)) }
	if p := r.At(99); l.maxP99 > 0 && p > l.maxP99 {
		short("p99 is %v, want at most %v", p, l.maxP99)
	}
	if l.minRate > 0 && r.CallsPerSec < l.minRate {
		short("%.0f calls a second were answered, want at least %.0f", r.CallsPerSec, l.minRate)
	}
	if n := r.Errors(); l.maxErrs >= 0 && n > l.maxErrs {
		short("%d calls got no number, want at most %d", n, l.maxErrs)
	}
	if r.Disordered > 0 {
		short("%d answers went back: a number or a token was not above the one before it", r.Disordered)
	}
	if all != nil {
		return cli.Exit(exitThreshold, all)
	}
	return nil
}
