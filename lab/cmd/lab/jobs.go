package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/server/cli"
)

func newJobs() *cobra.Command {
	cfg := lab.SeedConfig{}
	var in time.Duration
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "Fill a ledger's database with jobs that fire once each",
		Long: `Fill a ledger's database with jobs, for experiments with many jobs. No ledger may use a
SQLite file meanwhile.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.DB == "" || cfg.N == 0 {
				return cli.Exit(exitUsage, errors.New("set --db and --n"))
			}
			cfg.First = time.Now().Add(in)
			began, said := time.Now(), time.Now()
			cfg.Progress = func(done uint64) {
				if time.Since(said) > time.Second {
					said = time.Now()
					cli.Say(cmd, "%d of %d jobs after %v", done, cfg.N, time.Since(began).Round(100*time.Millisecond))
				}
			}
			if err := lab.Seed(cmd.Context(), cfg); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%d jobs in %v\n", cfg.N, time.Since(began).Round(time.Millisecond))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.DB, "db", "", "the ledger's database: a SQLite file that is not in use, or a postgres:// URL")
	f.Uint64Var(&cfg.N, "n", 0, "number of jobs")
	f.StringVar(&cfg.Resource, "resource", "billing", "the ledger's resource: the group")
	f.DurationVar(&in, "in", time.Hour, "when the first job is due, from now")
	f.DurationVar(&cfg.Every, "every", time.Millisecond, "time between two jobs")
	return cmd
}
