package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab/strategies"
	"github.com/tenurehq/tenure/server/cli"
)

// candidateCommand runs one candidate. lab strategies starts it.
const candidateCommand = "strategy-candidate"

func newCandidate() *cobra.Command {
	return &cobra.Command{
		Use:    candidateCommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return strategies.RunCandidate(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

func newStrategies() *cobra.Command {
	var p strategies.Plan
	var report string
	var out output
	cmd := &cobra.Command{
		Use:   "strategies",
		Short: "Compare election strategies under the same faults",
		Long: `Run election strategies, each candidate as a process on real servers, and inject the same
faults into all of them, with the fence off and on. Print how many candidates believed at
once and for how long, which stale writes the resource accepted and refused, how long a
failover took, and how many messages it cost.

All faults are run with the first number of --nodes. With the others the leader is killed.
The TTL is the same for all. Finished rounds are kept in --out: the same command continues
from there, with another seed it begins again. docs/strategies.md explains the strategies.

Strategies: ` + strings.Join(strategies.Names(), ", ") + `.
Faults: ` + strings.Join(strategies.Faults(), ", ") + `.

Exit code 99: a fence that gets tokens accepted a stale write.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			if err := p.Validate(); err != nil {
				return cli.Exit(exitUsage, err)
			}
			if report != "" {
				return strategies.Report(p.Out, report)
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			p.Command = []string{self, candidateCommand}
			p.Say = func(what string) { cli.Say(cmd, "%s", what) }
			result, err := p.Run(cmd.Context())
			if err != nil {
				return err
			}
			summary := strategies.Summarize(result.Rounds)
			summary.Tables = append(summary.Tables, strategies.Elections(result.Elections), strategies.FlagTable(result.Flag))
			if err := out.write(cmd.OutOrStdout(), summary, summary.Print); err != nil {
				return err
			}
			for _, t := range summary.Thresholds {
				if !t.OK {
					err = errors.Join(err, fmt.Errorf("%s: %s, wanted %s", t.Name, t.Value, t.Bar))
				}
			}
			if err != nil {
				return cli.Exit(exitThreshold, err)
			}
			return nil
		},
	}
	const rounds, nine, seed = 5, 9, 21
	f := cmd.Flags()
	f.StringSliceVar(&p.Only, "only", nil, "strategies, all if it is empty")
	f.StringSliceVar(&p.Faults, "fault", nil, "faults, all if it is empty")
	f.IntVar(&p.Rounds, "rounds", rounds, "rounds of each strategy and fault")
	f.IntSliceVar(&p.Nodes, "nodes", []int{3, 5, nine}, "numbers of candidates, from 3 to 9")
	f.Uint64Var(&p.Seed, "seed", seed, "seed of delays and choices")
	f.DurationVar(&p.TTL, "ttl", 2*time.Second, "lease, or the silence after which a leader is taken for dead")
	f.StringVar(&p.Out, "out", filepath.Join(resultsDir(), "strategies"), "folder of the results")
	f.StringVar(&report, "report", "", "the docs folder: write the recorded results into strategies.md there, and run nothing")
	out.flag(f)
	return cmd
}
