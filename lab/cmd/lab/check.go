package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/server/cli"
)

func newCheck() *cobra.Command {
	var db string
	var out output
	cmd := &cobra.Command{
		Use:   "check [DIR…]",
		Short: "Check histories against what is guaranteed",
		Long: `Check the histories at or below DIR, which lab run and lab load --history have written:
one line for each guarantee, with file and line of what breaks it. What an experiment
broke on purpose is broken here too. The ledger's database is looked for beside a
history, or is --db: it is asked with a lag() query, and it must have what callers were
told and what the history says took effect. Without DIR the database alone is checked.

Which checks are made is fixed by the experiment in this program, not by the history.
The files must be those of the manifest, with its digests, and the verdicts must be those
that were kept when the run ended. This finds mistakes, loss and partial changes. It does
not find a forger who rewrites everything consistently: history, digests, database and
result. A history without a manifest was recorded before the stricter checks and does not
pass.
Exit code 99: a promise was broken, or there was nothing to look at.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, dirs []string) error {
			asJSON, err := out.json()
			switch {
			case err != nil:
				return err
			case len(dirs) > 0:
				return checkDirs(cmd, dirs, db, asJSON)
			case db == "":
				return cli.Exit(exitUsage, errors.New("nothing to check: give DIR, --db or both"))
			}
			v := check.Ledger(cmd.Context(), db)
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			} else {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), v)
			}
			switch {
			case err != nil:
				return cli.Exit(exitFailure, err)
			case v.Result != check.Pass:
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

// checkedDir is one history that was checked.
type checkedDir struct {
	Dir    string `json:"dir"`
	Passed bool   `json:"passed"`
	// Differs says what the run found that is not found now.
	Differs string       `json:"differs,omitempty"`
	Report  check.Report `json:"report"`
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
			return cli.Exit(exitFailure, err)
		}
	}
	if len(histories) == 0 {
		return cli.Exit(exitFailure, fmt.Errorf("no history at or below %s: there is no *.ndjson file", strings.Join(dirs, ", ")))
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
		report, err := check.Dir(cmd.Context(), dir, check.Options{DB: beside, Ledger: db != "", Expect: catalogue.Expected})
		if err != nil {
			return cli.Exit(exitFailure, err)
		}
		differs := recordedOtherwise(dir, report)
		passed := report.Passed() && differs == ""
		all = append(all, checkedDir{dir, passed, differs, report})
		if !passed {
			broken++
		}
		if asJSON {
			continue
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: experiment %s\n", dir, report.Run.Experiment); err != nil {
			return cli.Exit(exitFailure, err)
		}
		for _, v := range report.Verdicts {
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "  %s\n", v); err != nil {
				return cli.Exit(exitFailure, err)
			}
		}
		if differs != "" {
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "  %s\n", differs); err != nil {
				return cli.Exit(exitFailure, err)
			}
		}
	}
	if asJSON {
		if err := json.NewEncoder(cmd.OutOrStdout()).Encode(all); err != nil {
			return cli.Exit(exitFailure, err)
		}
	}
	if broken > 0 {
		return cli.Exit(exitThreshold, fmt.Errorf("%d of %d histories do not show that every guarantee held", broken, len(histories)))
	}
	return nil
}

// recordedOtherwise says how a report differs from the one that was kept when the run
// ended; empty: it does not, or none was kept.
func recordedOtherwise(history string, now check.Report) string {
	then, kept := experiment.Recorded(history)
	if !kept || then.Manifest == "" && now.Manifest == "" {
		return "" // nothing to compare, or recorded before the stricter checks
	}
	if then.Manifest != now.Manifest {
		return "the result beside this history is of a history with another manifest"
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

func fileExists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}
