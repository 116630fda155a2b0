package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab/sites"
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

func newSites() *cobra.Command {
	var r sites.Replay
	var fences []string
	var figures string
	var out output
	cmd := &cobra.Command{
		Use:   "sites",
		Short: "Replay an outage in which two sites accept writes",
		Long: `Cut two sites with real databases off from each other, let the one without the primary
promote its replica, and count the acknowledged writes that the surviving database does not
have: with asynchronous replication and a failover manager (--fence off), and with a leader
that Tenure elects, a fence, and writes that are acknowledged when both sites have them
(--fence on). docs/strategies.md tells the story.

Exit code 99: without the fence no write was lost, or with it one was.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			const shortest = 2 * time.Second
			if r.Cut < shortest {
				return cli.Usage("--cut %v: at least %v", r.Cut, shortest)
			}
			r.Say = func(what string) { cli.Say(cmd, "%s", what) }
			var results []sites.Result
			for _, f := range fences {
				if f != "on" && f != "off" {
					return cli.Usage("--fence %q: use on, off, or both", f)
				}
			}
			var wrong error
			for _, f := range fences {
				r.Fence = f == "on"
				result, err := r.Run(cmd.Context())
				if err != nil {
					return err
				}
				results = append(results, result)
				if r.Fence != (result.East.Lost == 0) {
					wrong = errors.Join(wrong, fmt.Errorf("fence %s: %d acknowledged writes are lost", f, result.East.Lost))
				}
				if figures == "" {
					continue
				}
				fig, err := result.Figure()
				if err == nil {
					err = fig.Save(figures, "sites-fence-"+f)
				}
				if err != nil {
					return err
				}
			}
			err := out.write(cmd.OutOrStdout(), results, func(w io.Writer) (err error) {
				for _, r := range results {
					_, e := fmt.Fprint(w, r)
					err = errors.Join(err, e)
				}
				return err
			})
			if wrong != nil {
				return cli.Exit(exitThreshold, wrong)
			}
			return err
		},
	}
	const cut = 43 * time.Second
	f := cmd.Flags()
	f.DurationVar(&r.Cut, "cut", cut, "how long the sites are cut off from each other")
	f.StringSliceVar(&fences, "fence", []string{"off", "on"}, "off, on, or both")
	f.StringVar(&figures, "figures", "", "folder for the timelines")
	out.flag(f)
	return cmd
}
