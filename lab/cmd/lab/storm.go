package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/storm"
	"github.com/tenurehq/tenure/server/cli"
)

func newStorm() *cobra.Command {
	var s storm.Storm
	var plan bool
	r := runFlags{again: true}
	cmd := &cobra.Command{
		Use:   "storm",
		Short: "Inject faults of every kind at random, for a set time, and check what held",
		Long: `Start a fleet under load and inject faults, one after the other and in pairs: processes
killed, stopped and paused, connections cut and flapping, wrong clocks, handovers, the
ledger and members of the engine killed and paused, the quorum lost. Of ten faults six
are aimed at the leader, two anywhere, two at the moment of a change of leader. Then
everything is healed, the fleet gets the time that recovery may take, and every
guarantee is checked by name.

The same seed gives the same plan: kinds, roles, durations. --plan prints it and injects
nothing. An engine of one member loses its quorum by being cut off from all nodes; it is
killed and never paused. A fault that left no evidence does not count. The first Ctrl-C ends the storm,
heals, and checks what was recorded; the second ends everything.

Exit code 99: a bar was not met.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := r.form.validate(); err != nil {
				return err
			}
			s.Stop = cmd.Context() // the first Ctrl-C ends the storm only
			e, err := s.Experiment()
			if err != nil {
				return cli.Exit(exitUsage, err)
			}
			if plan {
				lines, err := s.Plan()
				if err == nil {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(lines, "\n"))
				}
				return err
			}
			cmd.SetContext(context.WithoutCancel(cmd.Context()))
			return r.perform(cmd, []experiment.Experiment{e}, experiment.Full)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&s.For, "for", 30*time.Minute, "how long faults are injected")
	f.StringVar(&s.Engine, "engine", "etcd", "engine, of one member, and of three with etcd: "+strings.Join(lab.Backends(), ", "))
	f.BoolVar(&s.Unfenced, "unfenced", false, "turn the ledger's fence off: then stale writes must be accepted")
	f.BoolVar(&s.Pulse, "pulse", false, "give each node a keeper, so that a killed leader is replaced at once (Linux)")
	f.Uint64Var(&s.Seed, "seed", 14, "seed of the plan")
	f.BoolVar(&plan, "plan", false, "print the plan only")
	binFlag(f, &r.bin)
	f.StringVar(&r.out, "out", resultsDir(), "folder for results and histories")
	r.form.flag(f)
	return cmd
}
