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
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/server/cli"
)

// resultsDir is where results are kept unless another folder is given.
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
	seed         uint64
	form         output
}

func newRun() *cobra.Command {
	var r runFlags
	cmd := &cobra.Command{
		Use:   "run NAME…|quick|all",
		Short: "Run experiments: attack a fleet, check what it did, say what held",
		Long: `Run experiments, one after the other: each starts a fleet of its own, drives load, puts
faults into it, writes down every call and event, and checks that history. "quick" is
the quick form of 1, 3, 4, 5 and 7, in less than five minutes; "all" is everything in
full. What has passed with the same programs, configuration and seed is not run again,
and a run that was stopped goes on with the next trial.

` + catalogue() + `
Thresholds come first, then tables; result.json, pictures and histories are in --out.
Exit code 99: a threshold was not met, or something that was waited for was not seen.`,
		Args: cobra.MinimumNArgs(1),
		RunE: r.run,
	}
	f := cmd.Flags()
	f.StringVar(&r.bin, "bin", "", "folder of engine and labfleet, with those for planted bugs in planted/ (default that of lab, else they are built)")
	f.StringVar(&r.out, "out", resultsDir(), "folder for results and histories")
	f.BoolVar(&r.quick, "quick", false, "short TTLs and few rounds")
	f.BoolVar(&r.again, "again", false, "run also what has a result")
	f.Uint64Var(&r.seed, "seed", 0, "another seed than the experiment's own")
	r.form.flag(f)
	return cmd
}

// catalogue lists the experiments.
func catalogue() string {
	var b strings.Builder
	for _, e := range experiment.All() {
		fmt.Fprintf(&b, "  %-3s %s\n", e.Name, e.Title)
	}
	return b.String()
}

// chosen are the experiments and their size.
func (r *runFlags) chosen(names []string) ([]experiment.Experiment, experiment.Size, error) {
	size := experiment.Full
	if r.quick {
		size = experiment.Quick
	}
	var list []experiment.Experiment
	var err error
	switch {
	case len(names) == 1 && names[0] == "quick":
		list, size = experiment.Quickly(), experiment.Quick
	case len(names) == 1 && names[0] == "all":
		list = experiment.All()
	case slices.Contains(names, "quick") || slices.Contains(names, "all"):
		err = errors.New("quick and all stand alone: the quick form of one experiment is NAME --quick")
	default:
		list, err = experiment.Find(names...)
	}
	if r.seed != 0 {
		for i := range list {
			list[i].Seed = r.seed
		}
	}
	return list, size, err
}

func (r *runFlags) run(cmd *cobra.Command, names []string) error {
	asJSON, err := r.form.json()
	if err != nil {
		return err
	}
	list, size, err := r.chosen(names)
	if err != nil {
		return cli.Exit(exitUsage, err)
	}
	return r.perform(cmd, list, size, asJSON)
}

// perform runs experiments and prints what they have shown.
func (r *runFlags) perform(cmd *cobra.Command, list []experiment.Experiment, size experiment.Size, asJSON bool) error {
	line := lab.NewTimeline(cmd.ErrOrStderr())
	say := func(s string) { line.Say("%s", s) }
	bin, err := lab.FindPrograms(cmd.Context(), r.bin, say)
	if err != nil {
		return cli.Exit(exitFailure, err)
	}
	planted := sync.OnceValues(func() (string, error) { return lab.FindPlanted(cmd.Context(), r.bin, say) })
	cfg := experiment.Config{
		Bin: bin, Planted: func(context.Context) (string, error) { return planted() }, Out: r.out, Size: size, Again: r.again,
	}
	lengths, total := estimate(cmd.Context(), cfg, list, say)
	var results []experiment.Result
	var failed, broken error
	var before time.Duration
	for i, e := range list {
		cfg.Say = func(done float64, what string) {
			passed := before + time.Duration(done*float64(lengths[i]))
			line.Say("%s experiment %s, %s", bar(passed.Seconds()/max(total.Seconds(), 1)), e.Name, what)
		}
		result, err := experiment.Run(cmd.Context(), cfg, e)
		before += lengths[i]
		switch {
		case cmd.Context().Err() != nil:
			return cli.Exit(exitFailure, fmt.Errorf("%w; what is finished is kept: the same command goes on from there", context.Cause(cmd.Context())))
		case errors.Is(err, experiment.ErrNotSeen):
			// The others can still tell something.
			failed = errors.Join(failed, err)
			say("error: " + err.Error())
			continue
		case err != nil:
			broken = errors.Join(broken, err)
			say("error: " + err.Error())
			continue
		}
		results = append(results, result)
		if !asJSON {
			if err := result.Print(cmd.OutOrStdout()); err != nil {
				return cli.Exit(exitFailure, err)
			}
		}
	}
	if asJSON {
		if err := json.NewEncoder(cmd.OutOrStdout()).Encode(results); err != nil {
			return cli.Exit(exitFailure, err)
		}
	}
	if broken != nil {
		return cli.Exit(exitFailure, errors.Join(broken, failed))
	}
	return verdictOf(results, failed)
}

// estimate says first how long it will take, and returns that by experiment; what has a
// result takes no time.
func estimate(ctx context.Context, cfg experiment.Config, list []experiment.Experiment, say func(string)) (lengths []time.Duration, total time.Duration) {
	kept := 0
	var words []string
	for _, e := range list {
		var length time.Duration
		if experiment.Finished(ctx, cfg, e) {
			kept++
		} else {
			length = experiment.Estimate(cfg.Out, cfg.Size, e)
			words = append(words, fmt.Sprintf("%s %s", e.Name, about(length)))
		}
		lengths = append(lengths, length)
		total += length
	}
	if len(words) == 0 {
		return lengths, total
	}
	what := fmt.Sprintf("about %s for %d experiments (%s)", about(total), len(words), strings.Join(words, ", "))
	if kept > 0 {
		what += fmt.Sprintf("; %d have a result already", kept)
	}
	if !cfg.Again {
		what += "; it can be stopped at any time and goes on where it was"
	}
	say(what)
	return lengths, total
}

// about is a duration as people say it.
func about(d time.Duration) string {
	switch {
	case d >= 2*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	case d >= 2*time.Minute:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}

// bar is how much is done.
func bar(done float64) string {
	const width = 20
	n := min(max(int(done*width), 0), width)
	return fmt.Sprintf("[%s%s] %3.0f %%", strings.Repeat("#", n), strings.Repeat("-", width-n), 100*done)
}

// verdictOf is nil if every threshold of every result was met.
func verdictOf(results []experiment.Result, failed error) error {
	for _, r := range results {
		for _, t := range r.Thresholds {
			if !t.OK {
				failed = errors.Join(failed, fmt.Errorf("experiment %s (%s): %s: %s, wanted %s", r.Name, r.Size, t.Name, t.Value, t.Bar))
			}
		}
	}
	if failed == nil && len(results) == 0 {
		failed = errors.New("there was nothing to judge: that proves nothing")
	}
	if failed != nil {
		return cli.Exit(exitThreshold, failed)
	}
	return nil
}
