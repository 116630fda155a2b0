package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/app/lab"
	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/app/lab/experiment"
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
full. What has passed with the same programs, configuration and seed is not run again.

` + catalogue() + `
Thresholds come first, then tables; result.json, pictures and histories are in --out.
Exit code 99: a threshold was not met, or something that was waited for was not seen.`,
		Args: cobra.MinimumNArgs(1),
		RunE: r.run,
	}
	f := cmd.Flags()
	f.StringVar(&r.bin, "bin", "", "folder of engine, node and tenure, with those for planted bugs in planted/ (default that of lab, else they are built)")
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
		return &exitError{exitUsage, err}
	}
	return r.perform(cmd, list, size, asJSON)
}

// perform runs experiments and prints what they have shown.
func (r *runFlags) perform(cmd *cobra.Command, list []experiment.Experiment, size experiment.Size, asJSON bool) error {
	line := lab.NewTimeline(cmd.ErrOrStderr())
	say := func(s string) { line.Say("%s", s) }
	bin, err := lab.FindPrograms(cmd.Context(), r.bin, say)
	if err != nil {
		return &exitError{exitFailure, err}
	}
	planted := sync.OnceValues(func() (string, error) { return lab.FindPlanted(cmd.Context(), r.bin, say) })
	var results []experiment.Result
	var failed error
	for i, e := range list {
		cfg := experiment.Config{
			Bin: bin, Planted: func(context.Context) (string, error) { return planted() }, Out: r.out, Size: size, Again: r.again,
			Say: func(done float64, what string) {
				line.Say("%s experiment %s, %s", bar((float64(i)+done)/float64(len(list))), e.Name, what)
			},
		}
		result, err := experiment.Run(cmd.Context(), cfg, e)
		switch {
		case cmd.Context().Err() != nil:
			return &exitError{exitFailure, fmt.Errorf("%w; what is finished is kept: the same command goes on from there", context.Cause(cmd.Context()))}
		case errors.Is(err, experiment.ErrNotSeen):
			// The others can still tell something.
			failed = errors.Join(failed, err)
			say("error: " + err.Error())
			continue
		case err != nil:
			return &exitError{exitFailure, err}
		}
		results = append(results, result)
		if !asJSON {
			if err := result.Print(cmd.OutOrStdout()); err != nil {
				return &exitError{exitFailure, err}
			}
		}
	}
	if asJSON {
		if err := json.NewEncoder(cmd.OutOrStdout()).Encode(results); err != nil {
			return &exitError{exitFailure, err}
		}
	}
	return verdictOf(results, failed)
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
		return &exitError{exitThreshold, failed}
	}
	return nil
}

func newReport() *cobra.Command {
	var out string
	var form output
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Say again what the experiments that were run have shown",
		Long: `Print the results that are kept in --out, thresholds first, then tables. Exit code 99: a
threshold was not met, or there is no result.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := form.json()
			if err != nil {
				return err
			}
			results, err := experiment.Results(out)
			if err != nil {
				return &exitError{exitFailure, err}
			}
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(results)
			}
			for _, r := range results {
				if !asJSON {
					r.Kept = true
					err = errors.Join(err, r.Print(cmd.OutOrStdout()))
				}
			}
			if err != nil {
				return &exitError{exitFailure, err}
			}
			return verdictOf(results, nil)
		},
	}
	f := cmd.Flags()
	f.StringVar(&out, "out", resultsDir(), "folder of the results")
	form.flag(f)
	return cmd
}

// checkedDir is one history that was checked.
type checkedDir struct {
	Dir    string       `json:"dir"`
	Passed bool         `json:"passed"`
	Report check.Report `json:"report"`
}

// checkDirs checks every history at or below the folders. The ledger's database is
// looked for beside each, unless it is given.
func checkDirs(cmd *cobra.Command, dirs []string, db string, asJSON bool) error {
	var histories []string
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if found, _ := filepath.Glob(filepath.Join(path, "*.ndjson")); d.IsDir() && len(found) > 0 {
				histories = append(histories, path)
			}
			return nil
		})
		if err != nil {
			return &exitError{exitFailure, err}
		}
	}
	if len(histories) == 0 {
		return &exitError{exitFailure, fmt.Errorf("no history at or below %s: there is no *.ndjson file", strings.Join(dirs, ", "))}
	}
	var all []checkedDir
	broken := 0
	for _, dir := range histories {
		beside := db
		if beside == "" {
			if path := filepath.Join(filepath.Dir(dir), "ledger.db"); fileExists(path) {
				beside = path
			}
		}
		report, err := check.Dir(cmd.Context(), dir, check.Options{DB: beside})
		if err != nil {
			return &exitError{exitFailure, err}
		}
		all = append(all, checkedDir{dir, report.Passed(), report})
		if !report.Passed() {
			broken++
		}
		if asJSON {
			continue
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: experiment %s\n", dir, report.Run.Experiment); err != nil {
			return &exitError{exitFailure, err}
		}
		for _, v := range report.Verdicts {
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "  %s\n", v); err != nil {
				return &exitError{exitFailure, err}
			}
		}
	}
	if asJSON {
		if err := json.NewEncoder(cmd.OutOrStdout()).Encode(all); err != nil {
			return &exitError{exitFailure, err}
		}
	}
	if broken > 0 {
		return &exitError{exitThreshold, fmt.Errorf("%d of %d histories do not show that every guarantee held", broken, len(histories))}
	}
	return nil
}

func fileExists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}
