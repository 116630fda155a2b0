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

	"github.com/tenurehq/tenure/lab/prevote"
	"github.com/tenurehq/tenure/lab/sites"
	"github.com/tenurehq/tenure/lab/strategies"
	"github.com/tenurehq/tenure/lease"
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

func newRegions() *cobra.Command {
	r := strategies.Regions{Timing: lease.WAN()}
	var out output
	cmd := &cobra.Command{
		Use:   "regions",
		Short: "Measure Tenure on etcd across three regions",
		Long: `Run one candidate and one member of etcd in each of three regions, with delays between the
regions, and measure elections, keep-alives, handovers and failovers after a crash. A delay
of 0 is a leader for each region: its candidates and its engine are in that region. Then
leave the fleet alone and count changes of leader, of which there must be none.

Exit code 99: up to +50 ms, a failover took longer than the TTL and 2 s, the p95 of the
handovers was above 400 ms, or the leader changed by itself.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			r.Timing = r.Timing.Resolve()
			if err := r.Timing.Validate(); err != nil {
				return cli.Exit(exitUsage, err)
			}
			if r.Rounds < 1 || len(r.Delays) == 0 {
				return cli.Usage("set --rounds and --delay to at least one")
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			r.Command = []string{self, candidateCommand}
			r.Say = func(what string) { cli.Say(cmd, "%s", what) }
			all, err := r.Run(cmd.Context())
			if err != nil {
				return err
			}
			summary := r.Summarize(all)
			if err := out.write(cmd.OutOrStdout(), summary, summary.Print); err != nil {
				return err
			}
			if !summary.Passed() {
				return cli.Exit(exitThreshold, errors.New("a bar was not met"))
			}
			return nil
		},
	}
	const rounds = 10
	f := cmd.Flags()
	f.DurationSliceVar(&r.Delays, "delay", []time.Duration{0, 50 * time.Millisecond, 150 * time.Millisecond}, "round trips that are added between two regions")
	f.IntVar(&r.Rounds, "rounds", rounds, "rounds of each delay")
	f.DurationVar(&r.Idle, "idle", 10*time.Minute, "how long the fleet is left alone")
	f.DurationVar(&r.Timing.TTL, "ttl", r.Timing.TTL, "TTL; the default is that of lease.WAN")
	f.DurationVar(&r.Timing.Beat, "beat", r.Timing.Beat, "time between keep-alives; the default is that of lease.WAN")
	out.flag(f)
	return cmd
}

func newPreVote() *cobra.Command {
	var r prevote.Run
	var out output
	cmd := &cobra.Command{
		Use:   "prevote",
		Short: "Count how often a Raft node that comes back disrupts the leader, with and without pre-vote",
		Long: `Run three nodes of hashicorp/raft, cut a follower off until it wants to be elected, and let
it come back: with pre-vote, and without.

Exit code 99: a leader was disrupted with pre-vote, or none was without.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			const shortest = 50 * time.Millisecond
			if r.Rounds < 1 || r.Heartbeat < shortest {
				return cli.Usage("--rounds must be at least 1, and --heartbeat at least %v", shortest)
			}
			var results []prevote.Result
			for _, on := range []bool{true, false} {
				r.PreVote = on
				result, err := r.Do(cmd.Context())
				if err != nil {
					return err
				}
				results = append(results, result)
			}
			if err := out.write(cmd.OutOrStdout(), results, func(w io.Writer) error { _, err := fmt.Fprint(w, results[0], results[1]); return err }); err != nil {
				return err
			}
			if results[0].Disruptions > 0 || results[1].Disruptions == 0 {
				return cli.Exit(exitThreshold, errors.New("wanted no disruption with pre-vote, and some without"))
			}
			return nil
		},
	}
	const rounds, seed = 20, 21
	f := cmd.Flags()
	f.IntVar(&r.Rounds, "rounds", rounds, "how often a node comes back")
	f.DurationVar(&r.Heartbeat, "heartbeat", time.Second, "election timeout of the nodes")
	f.Uint64Var(&r.Seed, "seed", seed, "seed of which follower is cut off")
	out.flag(f)
	return cmd
}
