package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/app/fleet/api"
	"github.com/tenurehq/tenure/app/lab"
	"github.com/tenurehq/tenure/app/lab/history"
)

// checked is the answer of lab check.
type checked struct {
	Callers *history.Result `json:"callers,omitempty"`
	Ledger  *history.Result `json:"ledger,omitempty"`
}

func newCheck() *cobra.Command {
	var files []string
	var db, resource, name string
	var out output
	cmd := &cobra.Command{
		Use:   "check [DIR…]",
		Short: "Check histories against what is guaranteed",
		Long: `Check the histories at or below DIR, which lab run has written: one line for each
guarantee, with file and line of what breaks it. What an experiment broke on purpose is
broken here too. The ledger's database is looked for beside a history, or is --db.

Without DIR check histories of lab load, all together: for calls ordered in time the numbers rise
and the token never falls, and nothing was given twice. With --db the ledger's own table
is asked too, with a lag() query, and each call must lie in one allocation of its token.
Exit code 99: a promise was broken.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, dirs []string) error {
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			if len(dirs) > 0 {
				if len(files) > 0 {
					return &exitError{exitUsage, errors.New("DIR and --history are histories of two kinds: check one after the other")}
				}
				return checkDirs(cmd, dirs, db, asJSON)
			}
			if len(files) == 0 && db == "" {
				return &exitError{exitUsage, errors.New("nothing to check: give DIR, --history, --db or both of these")}
			}
			var calls []history.Call
			for _, f := range files {
				part, err := history.Read(f)
				if err != nil {
					return &exitError{exitFailure, err}
				}
				calls = append(calls, part...)
			}
			var c checked
			if len(files) > 0 {
				r := history.Check(calls)
				c.Callers = &r
			}
			if db != "" {
				d, err := history.Open(db, true)
				if err != nil {
					return &exitError{exitFailure, err}
				}
				defer func() { _ = d.Close() }()
				r, err := history.CheckLedger(cmd.Context(), d, resource, name, calls)
				if err != nil {
					return &exitError{exitFailure, err}
				}
				c.Ledger = &r
			}
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(c)
			} else {
				err = c.print(cmd.OutOrStdout())
			}
			if err != nil {
				return &exitError{exitFailure, err}
			}
			return c.verdict()
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&files, "history", nil, "a history of lab load; may be repeated")
	f.StringVar(&db, "db", "", "the ledger's database: a SQLite file, in use or not, or a postgres:// URL")
	f.StringVar(&resource, "resource", "billing", "the ledger's resource: the group")
	f.StringVar(&name, "sequence", api.Sequence, "the sequence")
	out.flag(f)
	return cmd
}

func (c checked) print(w io.Writer) error {
	for _, part := range []struct {
		who, what string
		r         *history.Result
	}{{"callers", "calls", c.Callers}, {"ledger", "allocations", c.Ledger}} {
		if part.r == nil {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-8s %10d %s, %d ids from %d to %d under %d tokens, %d breaches\n", part.who, part.r.Calls, part.what, part.r.IDs, part.r.First, part.r.Last, part.r.Tokens, part.r.Breaches); err != nil {
			return err
		}
		for _, e := range part.r.Examples {
			if _, err := fmt.Fprintf(w, "  %s\n", e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c checked) verdict() error {
	for _, r := range []*history.Result{c.Callers, c.Ledger} {
		switch {
		case r == nil:
		case r.Breaches > 0:
			return &exitError{exitThreshold, fmt.Errorf("%d promises were broken", r.Breaches)}
		case r.Calls == 0:
			return &exitError{exitThreshold, errors.New("there was nothing to check: that proves nothing")}
		}
	}
	return nil
}

func newJobs() *cobra.Command {
	cfg := lab.SeedConfig{}
	var in time.Duration
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "Fill a ledger's database with jobs that are each fired once",
		Long: `Fill a ledger's database with jobs, for experiments with large work-sets. A SQLite file
must not be served meanwhile.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.DB == "" || cfg.N == 0 {
				return &exitError{exitUsage, errors.New("--db and --n must be given")}
			}
			cfg.First = time.Now().Add(in)
			began, said := time.Now(), time.Now()
			cfg.Progress = func(done uint64) {
				if time.Since(said) > time.Second {
					said = time.Now()
					_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d jobs after %v\n", done, cfg.N, time.Since(began).Round(100*time.Millisecond))
				}
			}
			if err := lab.Seed(cmd.Context(), cfg); err != nil {
				return &exitError{exitFailure, err}
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%d jobs in %v\n", cfg.N, time.Since(began).Round(time.Millisecond))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.DB, "db", "", "the ledger's database: a SQLite file that is not in use, or a postgres:// URL")
	f.Uint64Var(&cfg.N, "n", 0, "how many")
	f.StringVar(&cfg.Resource, "resource", "billing", "the ledger's resource: the group")
	f.DurationVar(&in, "in", time.Hour, "when the first is due, from now")
	f.DurationVar(&cfg.Every, "every", time.Millisecond, "how long after it the next is")
	return cmd
}
