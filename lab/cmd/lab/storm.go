package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/server/cli"
)

type stormFlags struct {
	runFlags
	storm experiment.Storm
	plan  bool
}

func newStorm() *cobra.Command {
	var s stormFlags
	cmd := &cobra.Command{
		Use:   "storm",
		Short: "Put faults of every kind into a fleet at random, for a set time, and check what held",
		Long: `Start a fleet under load and put faults into it, one after the other and in pairs: processes
killed, stopped and paused, connections cut and flapping, clocks that are wrong, handovers,
the ledger and members of the engine killed and paused, the quorum lost. Of ten faults six
are aimed at the leader, two anywhere, two at the moment at which another comes to lead.
Then everything is healed, the fleet has the time that recovery may take, and every
guarantee is checked by name.

The same seed gives the same plan: kinds, roles, durations. --plan shows it and does
nothing. A fault that left no evidence does not count. The first Ctrl-C ends the storm,
heals, and checks what there is; the second ends everything.

Exit code 99: a threshold was not met.`,
		Args: cobra.NoArgs,
		RunE: s.run,
	}
	f := cmd.Flags()
	f.DurationVar(&s.storm.For, "for", 30*time.Minute, "how long faults are set")
	f.StringVar(&s.storm.Engine, "engine", "etcd", "etcd (three members) or raft")
	f.Uint64Var(&s.storm.Seed, "seed", 14, "what the plan is drawn from")
	f.BoolVar(&s.plan, "plan", false, "show the plan, and do nothing")
	f.StringVar(&s.bin, "bin", "", "folder of engine and labfleet (default that of lab, else they are built)")
	f.StringVar(&s.out, "out", resultsDir(), "folder for results and histories")
	s.form.flag(f)
	return cmd
}

func (s *stormFlags) run(cmd *cobra.Command, _ []string) error {
	asJSON, err := s.form.json()
	if err != nil {
		return err
	}
	// The first Ctrl-C ends the storm, and nothing else: what there is shall be checked.
	s.storm.Stop = cmd.Context()
	e, err := s.storm.Experiment()
	if err != nil {
		return cli.Exit(exitUsage, err)
	}
	if s.plan {
		lines, err := s.storm.Plan()
		if err != nil {
			return cli.Exit(exitUsage, err)
		}
		for _, l := range lines {
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), l); err != nil {
				return cli.Exit(exitFailure, err)
			}
		}
		return nil
	}
	cmd.SetContext(context.WithoutCancel(cmd.Context()))
	s.again = true
	return s.perform(cmd, []experiment.Experiment{e}, experiment.Full, asJSON)
}
