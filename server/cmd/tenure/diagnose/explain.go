// Package diagnose has the commands that explain timings and check a deployment.
package diagnose

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/server/advise"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/engines"
)

// Commands returns the commands.
func Commands(env cli.Env) []*cobra.Command {
	return []*cobra.Command{newExplain(env), newDoctor(env)}
}

// explainer holds the flags of explain.
type explainer struct {
	out     cli.Output
	backend string
	preset  string
	timing  lease.Timing
	raft    raft.Timing
	goals   advise.Goals
}

// explanation is the result in JSON.
type explanation struct {
	Backend          string           `json:"backend"`
	TTLMS            float64          `json:"ttl_ms"`
	BeatMS           float64          `json:"beat_ms"`
	Misses           int              `json:"misses,omitempty"`
	TrustMS          float64          `json:"trust_ms"`
	PauseToleratedMS float64          `json:"pause_tolerated_ms"`
	FailoverMS       float64          `json:"failover_ms"`
	WorstFailoverMS  float64          `json:"worst_failover_ms"`
	FailoverProvedMS float64          `json:"failover_proved_ms,omitempty"` // with a keeper
	Verdict          advise.Level     `json:"verdict"`
	Findings         []advise.Finding `json:"findings"`
}

func newExplain(env cli.Env) *cobra.Command {
	x := &explainer{}
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Explain timings: what they mean, which rule they break, what to change.",
		Long: `Explain timings: how long a leader trusts its lease, which pauses it survives, how long a
crash leaves a group without a leader, with and without a keeper, which rule they break, and
what to change. Fields that are not given get their defaults. The command contacts no engine.

With --backend=raft use --heartbeat instead of --ttl. Exit code 1: a rule is broken.`,
		Example: `  tenure explain --ttl=8s --beat=2s --misses=3 --rto=30s --pause=500ms`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return x.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&x.backend, "backend", "etcd", strings.Join(backends(), ", ")+" (mem has no limits of its own)")
	f.StringVar(&x.preset, "preset", "", "start from default, lan, wan or cautious")
	f.DurationVar(&x.timing.TTL, "ttl", 0, "how long a session outlives its last keep-alive (default 8s)")
	f.DurationVar(&x.timing.Beat, "beat", 0, "time between keep-alives (default TTL/4)")
	f.IntVar(&x.timing.Misses, "misses", 0, "missed keep-alives before a warning (default 3)")
	f.Float64Var(&x.timing.Drift, "drift", 0, "largest difference of clock rates, as a fraction (default 0.02)")
	f.DurationVar(&x.timing.Margin, "margin", 0, "safety margin subtracted from trust (default: the larger of 50ms and TTL/40)")
	f.DurationVar(&x.timing.CallTimeout, "call-timeout", 0, "timeout of one call (default TTL/4)")
	f.DurationVar(&x.timing.Step, "step", 0, "delay between the attempts of successive candidates (default: the larger of 20ms and TTL/400)")
	f.DurationVar(&x.timing.Grace, "grace", 0, "how long before the end of trust the work is told to stop (default 0)")
	f.DurationVar(&x.raft.Heartbeat, "heartbeat", 0, "raft: time without a heartbeat after which a follower starts an election (default 1s)")
	f.DurationVar(&x.raft.Election, "election", 0, "raft: how long a candidate waits for votes (default: the heartbeat)")
	f.DurationVar(&x.raft.Stall, "stall", 0, "raft: longest stall of the disk (default 2s)")
	f.DurationVar(&x.goals.RTO, "rto", 0, "how long a crash may leave a group without a leader")
	f.DurationVar(&x.goals.Pause, "pause", 0, "longest pause of a process")
	f.DurationVar(&x.goals.RoundTrip, "rtt", 10*time.Millisecond, "slow round trip to the engine")
	x.out.Flag(cmd, env)
	for flag, values := range map[string][]string{"backend": backends(), "preset": {"default", "lan", "wan", "cautious"}} {
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic("tenure: " + err.Error()) // it is registered twice
		}
	}
	return cmd
}

// backends lists the values of --backend.
func backends() []string {
	var names []string
	for _, e := range engines.All() {
		if !slices.Contains(names, e.Caps.Engine) {
			names = append(names, e.Caps.Engine)
		}
	}
	return append(names, "raft", "mem")
}

// validate checks the flags and applies the preset.
func (x *explainer) validate(cmd *cobra.Command) error {
	if x.goals.RTO < 0 || x.goals.Pause < 0 || x.goals.RoundTrip < 0 {
		return errors.New("rto, pause and rtt must not be negative")
	}
	given := func(names ...string) string {
		for _, n := range names {
			if cmd.Flags().Changed(n) {
				return n
			}
		}
		return ""
	}
	switch x.backend {
	case "mem":
	case "raft":
		if n := given("ttl", "misses", "call-timeout", "step", "grace"); n != "" {
			return fmt.Errorf("%s: raft does not use it; use --heartbeat, --election, --beat, --stall, --drift and --margin", n)
		}
		return x.presetRaft()
	default:
		e, err := engines.Find(x.backend + "://")
		if err != nil || !slices.Contains(backends(), x.backend) {
			return fmt.Errorf("backend: %q is unknown; use one of %s", x.backend, strings.Join(backends(), ", "))
		}
		x.goals.Engine = e.Caps
	}
	if n := given("heartbeat", "election", "stall"); n != "" {
		return fmt.Errorf("%s: only raft uses it; add --backend=raft", n)
	}
	return x.presetLease()
}

func (x *explainer) presetLease() error {
	if x.preset == "" {
		return nil
	}
	presets := map[string]lease.Timing{"default": lease.Default(), "lan": lease.LAN(), "wan": lease.WAN(), "cautious": lease.Cautious()}
	p, ok := presets[x.preset]
	if !ok {
		return fmt.Errorf("preset: %q is none of default, lan, wan and cautious", x.preset)
	}
	if t := &x.timing; t.TTL == 0 {
		t.TTL, t.Beat, t.Misses = p.TTL, cmp.Or(t.Beat, p.Beat), cmp.Or(t.Misses, p.Misses)
	}
	return nil
}

func (x *explainer) presetRaft() error {
	t := &x.raft
	t.Beat, t.Drift, t.Margin = x.timing.Beat, x.timing.Drift, x.timing.Margin
	if x.preset == "" {
		return nil
	}
	p, ok := map[string]raft.Timing{"default": raft.Default(), "lan": raft.LAN(), "wan": raft.WAN()}[x.preset]
	if !ok {
		return fmt.Errorf("preset: %q is none of default, lan and wan", x.preset)
	}
	t.Heartbeat, t.Election, t.LeaderLease = cmp.Or(t.Heartbeat, p.Heartbeat), cmp.Or(t.Election, p.Election), cmp.Or(t.LeaderLease, p.LeaderLease)
	t.Commit, t.Beat, t.Stall = cmp.Or(t.Commit, p.Commit), cmp.Or(t.Beat, p.Beat), cmp.Or(t.Stall, p.Stall)
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (x *explainer) run(cmd *cobra.Command) error {
	if err := x.out.Open(cmd); err != nil {
		return err
	}
	if err := x.validate(cmd); err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	m := explanation{Backend: x.backend}
	var text string
	if x.backend == "raft" {
		e, found := advise.Raft(x.raft, x.goals)
		m.TTLMS, m.BeatMS, m.Findings = ms(e.Timing.Heartbeat), ms(e.Timing.Beat), found
		m.TrustMS, m.PauseToleratedMS, m.FailoverMS, m.WorstFailoverMS = ms(e.Trust), ms(e.PauseTolerated), ms(e.Failover), ms(e.WorstFailover)
		text = e.String()
	} else {
		e, found := advise.Lease(x.timing, x.goals)
		m.TTLMS, m.BeatMS, m.Misses, m.Findings = ms(e.Timing.TTL), ms(e.Timing.Beat), e.Timing.Misses, found
		late := x.goals.Engine.Late(e.Timing.TTL)
		m.TrustMS, m.PauseToleratedMS, m.FailoverMS, m.WorstFailoverMS = ms(e.Trust), ms(e.PauseTolerated), ms(e.Failover+late), ms(e.WorstFailover+late)
		m.FailoverProvedMS = ms(e.FailoverProved)
		text = advise.Timeline(e, x.goals) + "\n" + e.String()
	}
	m.Verdict = advise.Worst(m.Findings)
	if !x.out.Table() {
		table := cli.Table[explanation]{Name: func(m explanation) string { return string(m.Verdict) }}
		return errors.Join(table.One(&x.out, m), verdict(m.Findings))
	}
	if m.Findings[0].Level != advise.Broken { // otherwise the timings cannot be used at all
		if err := x.out.Print(text + "\n"); err != nil {
			return err
		}
	}
	return errors.Join(printFindings(&x.out, m.Findings), verdict(m.Findings))
}

// verdict is an error if something is broken.
func verdict(found []advise.Finding) error {
	n := 0
	for _, f := range found {
		if f.Level == advise.Broken {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return cli.Exit(cli.ExitFailure, fmt.Errorf("broken: %d of %d checks", n, len(found)))
}

// printFindings prints findings for a person.
func printFindings(out *cli.Output, found []advise.Finding) error {
	for _, f := range found {
		if err := findingTable.Stream(out, f); err != nil {
			return err
		}
		if f.Fix != "" {
			if err := out.Print(fmt.Sprintf("%-27s fix: %s\n", "", f.Fix)); err != nil {
				return err
			}
		}
	}
	return nil
}

var findingTable = cli.Table[advise.Finding]{
	Columns: []string{"LEVEL", "CHECK", "FINDING"},
	Row:     func(f advise.Finding) []string { return []string{string(f.Level), f.Check, f.Says} },
	Name:    func(f advise.Finding) string { return f.Check },
}
