package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/server/cli"
)

// resultsDir is the default folder of results.
func resultsDir() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	return filepath.Join(cache, "tenure", "lab")
}

type runFlags struct {
	bin, out     string
	quick, again bool
	engines      []string
	seed         uint64
	form         output
}

func newRun() *cobra.Command {
	var r runFlags
	cmd := &cobra.Command{
		Use:   "run NAME…|quick|all",
		Short: "Run experiments: inject faults into a fleet and check what held",
		Long: `Run experiments, one after the other: each starts its own fleets, drives load, injects
faults, records every call and event, and checks that history. "quick" is the quick form
of 1, 3, 4, 5 and 7, in less than five minutes; "all" is everything in full. What has
passed with the same programs, configuration and seed does not run again, and a run that
was stopped continues with the next trial.

` + experimentList() + `
Thresholds are printed first, then tables; --out has result.json, figures and histories.
Exit code 99: a bar was not met, or something expected was not seen.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := r.form.validate(); err != nil {
				return err
			}
			list, size, err := r.chosen(names)
			if err != nil {
				return cli.Exit(exitUsage, err)
			}
			return r.perform(cmd, list, size)
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.bin, "bin", "", "folder of engine and labfleet, with those for planted bugs in planted/ (default that of lab, else they are built)")
	f.StringVar(&r.out, "out", resultsDir(), "folder for results and histories")
	f.BoolVar(&r.quick, "quick", false, "short TTLs and few rounds")
	f.BoolVar(&r.again, "again", false, "run again what already has a result")
	f.Uint64Var(&r.seed, "seed", 0, "another seed than the experiment's own")
	f.StringSliceVar(&r.engines, "engine", nil, "run 1, 2, 3, 3b, 4, 5 and 7 on these engines instead: "+strings.Join(lab.Backends(), ", "))
	r.form.flag(f)
	return cmd
}

// experimentList lists the experiments, one per line.
func experimentList() string {
	var b strings.Builder
	for _, e := range catalogue.All() {
		fmt.Fprintf(&b, "  %-3s %s\n", e.Name, e.Title)
	}
	return b.String()
}

// chosen returns the experiments and their size.
func (r *runFlags) chosen(names []string) ([]experiment.Experiment, experiment.Size, error) {
	size := experiment.Full
	if r.quick {
		size = experiment.Quick
	}
	var list []experiment.Experiment
	var err error
	switch {
	case len(names) == 1 && names[0] == "quick":
		list, size = catalogue.Quickly(), experiment.Quick
	case len(names) == 1 && names[0] == "all":
		list = catalogue.All()
	case slices.Contains(names, "quick") || slices.Contains(names, "all"):
		err = errors.New("quick and all stand alone; for the quick form of one experiment use NAME --quick")
	default:
		list, err = catalogue.Find(names...)
	}
	for i := range list {
		if err == nil && len(r.engines) > 0 {
			list[i], err = catalogue.On(list[i], r.engines...)
		}
	}
	if r.seed != 0 {
		for i := range list {
			list[i].Seed = r.seed
		}
	}
	return list, size, err
}

// perform runs experiments and prints their results.
func (r *runFlags) perform(cmd *cobra.Command, list []experiment.Experiment, size experiment.Size) error {
	ctx, line := cmd.Context(), lab.NewTimeline(cmd.ErrOrStderr())
	say := func(s string) { line.Say("%s", s) }
	bin, err := lab.FindPrograms(ctx, r.bin, say)
	if err != nil {
		return err
	}
	planted := sync.OnceValues(func() (string, error) { return lab.FindPlanted(ctx, r.bin, say) })
	cfg := experiment.Config{
		Bin: bin, Planted: func(context.Context) (string, error) { return planted() }, Out: r.out, Size: size, Again: r.again,
	}
	lengths, total := estimate(ctx, cfg, list, say)
	var results []experiment.Result
	var unseen, failed error
	var before time.Duration
	for i, e := range list {
		cfg.Say = func(done float64, what string) {
			passed := before + time.Duration(done*float64(lengths[i]))
			line.Say("%s experiment %s, %s", bar(passed.Seconds()/max(total.Seconds(), 1)), e.Name, what)
		}
		result, err := experiment.Run(ctx, cfg, e)
		before += lengths[i]
		if ctx.Err() != nil {
			return fmt.Errorf("%w; finished trials are kept: the same command continues from there", context.Cause(ctx))
		}
		if err != nil { // run the others anyway
			say("error: " + err.Error())
			if errors.Is(err, trial.ErrNotSeen) {
				unseen = errors.Join(unseen, err)
			} else {
				failed = errors.Join(failed, err)
			}
			continue
		}
		results = append(results, result)
		if r.form == "json" {
			continue
		}
		if err := result.Print(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	if r.form == "json" {
		if err := json.NewEncoder(cmd.OutOrStdout()).Encode(results); err != nil {
			return err
		}
	}
	if failed != nil {
		return errors.Join(failed, unseen)
	}
	return verdictOf(results, unseen)
}

// estimate reports how long the experiments will take, and returns that for each; one with a
// result takes no time.
func estimate(ctx context.Context, cfg experiment.Config, list []experiment.Experiment, say func(string)) (lengths []time.Duration, total time.Duration) {
	var words []string
	for _, e := range list {
		var length time.Duration
		if !experiment.Finished(ctx, cfg, e) {
			length = experiment.Estimate(cfg, e)
			words = append(words, fmt.Sprintf("%s %s", e.Name, about(length)))
		}
		lengths = append(lengths, length)
		total += length
	}
	if len(words) == 0 {
		return lengths, total
	}
	what := fmt.Sprintf("about %s for %d experiments (%s)", about(total), len(words), strings.Join(words, ", "))
	if kept := len(list) - len(words); kept > 0 {
		what += fmt.Sprintf("; %d have a result already", kept)
	}
	if !cfg.Again {
		what += "; you can stop it at any time, and it continues where it was"
	}
	say(what)
	return lengths, total
}

// about writes a duration for people.
func about(d time.Duration) string {
	switch {
	case d >= 2*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	case d >= 2*time.Minute:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}

// bar is a progress bar.
func bar(done float64) string {
	const width = 20
	n := min(max(int(done*width), 0), width)
	return fmt.Sprintf("[%s%s] %3.0f %%", strings.Repeat("#", n), strings.Repeat("-", width-n), 100*done)
}

// verdictOf returns nil if there are results and every threshold was met.
func verdictOf(results []experiment.Result, failed error) error {
	for _, r := range results {
		for _, t := range r.Thresholds {
			if !t.OK {
				failed = errors.Join(failed, fmt.Errorf("experiment %s (%s): %s: %s, wanted %s", r.Name, r.Size, t.Name, t.Value, t.Bar))
			}
		}
	}
	if failed == nil && len(results) == 0 {
		failed = errors.New("there was nothing to judge")
	}
	if failed != nil {
		return cli.Exit(exitThreshold, failed)
	}
	return nil
}
