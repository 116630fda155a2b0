package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/verdict"
	"github.com/tenurehq/tenure/server/cli"
)

func newCheck() *cobra.Command {
	var db string
	var out output
	cmd := &cobra.Command{
		Use:   "check [DIR…]",
		Short: "Check histories against the guarantees",
		Long: `Check the histories at or below DIR, which lab run and lab load --history have written:
one line for each guarantee, with file and line of what breaks it. What an experiment
broke on purpose is broken here too. The ledger's database is the one beside the history,
or --db: its rows must be in order, and it must have what callers were told and what took
effect according to the history. Without DIR only the database is checked.

The experiment in this program decides which checks are made, not the history. The files
must be those of the manifest, with its digests, and the verdicts must be those that were
recorded when the run ended. This finds mistakes, loss and partial changes. It does not
find a consistent forgery of everything: history, digests, database and result. A history
without a manifest was recorded before the stricter checks and does not pass.
Exit code 99: a guarantee was broken, or there was nothing to check.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, dirs []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			if len(dirs) > 0 {
				return checkDirs(cmd, dirs, db, out)
			}
			if db == "" {
				return cli.Exit(exitUsage, errors.New("nothing to check: give DIR, --db or both"))
			}
			v := check.Ledger(cmd.Context(), db)
			if err := out.write(cmd.OutOrStdout(), v, func(w io.Writer) error { _, err := fmt.Fprintln(w, v); return err }); err != nil {
				return err
			}
			if v.Result != verdict.Pass {
				return cli.Exit(exitThreshold, errors.New("the ledger does not show that its sequences and tokens rise"))
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&db, "db", "", "the ledger's database: a SQLite file, in use or not, or a postgres:// URL")
	out.flag(f)
	return cmd
}

// checkedDir is the result of checking one history.
type checkedDir struct {
	Dir    string `json:"dir"`
	Passed bool   `json:"passed"`
	// Differs says how the recorded verdicts differ from these.
	Differs string         `json:"differs,omitempty"`
	Report  verdict.Report `json:"report"`
}

// checkDirs checks every history at or below the folders.
func checkDirs(cmd *cobra.Command, dirs []string, db string, out output) error {
	var histories []string
	for _, dir := range dirs {
		if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if found, _ := filepath.Glob(filepath.Join(path, "*.ndjson")); err == nil && d.IsDir() && len(found) > 0 {
				histories = append(histories, path)
			}
			return err
		}); err != nil {
			return err
		}
	}
	if len(histories) == 0 {
		return fmt.Errorf("no history at or below %s: there is no *.ndjson file", strings.Join(dirs, ", "))
	}
	var all []checkedDir
	broken := 0
	for _, dir := range histories {
		c, err := checkDir(cmd.Context(), dir, db)
		if err != nil {
			return err
		}
		all = append(all, c)
		if !c.Passed {
			broken++
		}
	}
	if err := out.write(cmd.OutOrStdout(), all, func(w io.Writer) error {
		var b strings.Builder
		for _, c := range all {
			fmt.Fprintf(&b, "%s: experiment %s\n", c.Dir, c.Report.Run.Experiment)
			for _, v := range c.Report.Verdicts {
				fmt.Fprintf(&b, "  %s\n", v)
			}
			if c.Differs != "" {
				fmt.Fprintf(&b, "  %s\n", c.Differs)
			}
		}
		_, err := io.WriteString(w, b.String())
		return err
	}); err != nil {
		return err
	}
	if broken > 0 {
		return cli.Exit(exitThreshold, fmt.Errorf("%d of %d histories do not show that every guarantee held", broken, len(histories)))
	}
	return nil
}

// checkDir checks one history. Without db it uses the ledger's database beside it.
func checkDir(ctx context.Context, dir, db string) (checkedDir, error) {
	opts := check.Options{DB: db, Ledger: db != "", Expect: catalogue.Expected}
	if path := filepath.Join(filepath.Dir(dir), "ledger.db"); db == "" {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			opts.DB = path
		}
	}
	report, err := check.Dir(ctx, dir, opts)
	differs := differsFromRecorded(dir, report)
	return checkedDir{dir, report.Passed() && differs == "", differs, report}, err
}

// differsFromRecorded says how a report differs from the one that was recorded when the run
// ended; empty: it does not, or none was recorded.
func differsFromRecorded(history string, now verdict.Report) string {
	then, kept := experiment.Recorded(history)
	if !kept || then.Manifest == "" && now.Manifest == "" {
		return "" // nothing to compare, or recorded before the stricter checks
	}
	if then.Manifest != now.Manifest {
		return "the recorded result belongs to another history: the manifests differ"
	}
	for _, v := range then.Verdicts {
		if n, there := now.Verdict(v.Check); !there || n.Result != v.Result {
			return fmt.Sprintf("the result beside this history says that %s is %s", v.Check, v.Result)
		}
	}
	if len(then.Verdicts) != len(now.Verdicts) {
		return fmt.Sprintf("the result beside this history has %d checks of %d", len(then.Verdicts), len(now.Verdicts))
	}
	return ""
}
