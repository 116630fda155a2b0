package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/server/advise"
	"github.com/tenurehq/tenure/server/cli"
)

// explaining is what the flags of explain say.
type explaining struct {
	out     cli.Output
	backend string
	preset  string
	timing  lease.Timing
	raft    raft.Timing
	wish    advise.Wish
}

// meaning is the answer for programs.
type meaning struct {
	Backend          string           `json:"backend"`
	TTLMS            float64          `json:"ttl_ms"`
	BeatMS           float64          `json:"beat_ms"`
	Misses           int              `json:"misses,omitempty"`
	TrustMS          float64          `json:"trust_ms"`
	PauseToleratedMS float64          `json:"pause_tolerated_ms"`
	FailoverMS       float64          `json:"failover_ms"`
	WorstFailoverMS  float64          `json:"worst_failover_ms"`
	Verdict          advise.Level     `json:"verdict"`
	Findings         []advise.Finding `json:"findings"`
}

func newExplain(env func(string) (string, bool)) *cobra.Command {
	x := &explaining{}
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "What timings mean, which relation they break, and what to change",
		Long: `Say what timings mean: how long a leader trusts itself, which pauses it survives, how long
a crash leaves a group without a leader; which relation between them is broken, and what
to change. Fields that are not given are derived. Nothing is asked of any engine.

With --backend=raft --heartbeat takes the place of --ttl. Exit code 1: something is broken.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return x.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&x.backend, "backend", "etcd", "etcd, raft, or mem: an engine that adds nothing of its own")
	f.StringVar(&x.preset, "preset", "", "begin with default, lan, wan or cautious")
	f.DurationVar(&x.timing.TTL, "ttl", 0, "how long a session outlives its last keep-alive (default 8s)")
	f.DurationVar(&x.timing.Beat, "beat", 0, "time between keep-alives (default a quarter of the TTL)")
	f.IntVar(&x.timing.Misses, "misses", 0, "how many beats may be missing before it is said aloud (default 3)")
	f.Float64Var(&x.timing.Drift, "drift", 0, "largest difference of clock rates, as a fraction (default 0.02)")
	f.DurationVar(&x.timing.Margin, "margin", 0, "taken off trust once more (default the larger of 50ms and a fortieth of the TTL)")
	f.DurationVar(&x.timing.CallTimeout, "call-timeout", 0, "bound of one call (default a quarter of the TTL)")
	f.DurationVar(&x.timing.Step, "step", 0, "how long each candidate in line waits for the one before it (default the larger of 20ms and TTL/400)")
	f.DurationVar(&x.timing.Grace, "grace", 0, "how long before the end of trust work is told to stop (default 0)")
	f.DurationVar(&x.raft.Heartbeat, "heartbeat", 0, "raft: a follower's patience (default 1s)")
	f.DurationVar(&x.raft.Election, "election", 0, "raft: how long a candidate waits for votes (default the heartbeat)")
	f.DurationVar(&x.raft.Stall, "stall", 0, "raft: how long the disk may hang (default 2s)")
	f.DurationVar(&x.wish.RTO, "rto", 0, "how long a crash may leave a group without a leader")
	f.DurationVar(&x.wish.Pause, "pause", 0, "the longest pause that a process sees")
	f.DurationVar(&x.wish.RoundTrip, "rtt", 10*time.Millisecond, "how long the engine takes to answer, on a bad day")
	x.out.Flag(cmd, env)
	for flag, values := range map[string][]string{"backend": {"etcd", "raft", "mem"}, "preset": {"default", "lan", "wan", "cautious"}} {
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic("tenure: " + err.Error()) // it is registered twice
		}
	}
	return cmd
}

// validate also fills what a preset gives.
func (x *explaining) validate(cmd *cobra.Command) error {
	if err := x.out.Validate(); err != nil {
		return err
	}
	if x.wish.RTO < 0 || x.wish.Pause < 0 || x.wish.RoundTrip < 0 {
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
	case "etcd":
		x.wish.Engine = advise.Etcd()
	case "mem":
	case "raft":
		if n := given("ttl", "misses", "call-timeout", "step", "grace"); n != "" {
			return fmt.Errorf("%s: raft has none; it has --heartbeat, --election, --beat, --stall, --drift and --margin", n)
		}
		return x.presetRaft()
	default:
		return fmt.Errorf("backend: %q is none of etcd, raft and mem", x.backend)
	}
	if n := given("heartbeat", "election", "stall"); n != "" {
		return fmt.Errorf("%s: that is raft's: say --backend=raft", n)
	}
	return x.presetLease()
}

func (x *explaining) presetLease() error {
	var p lease.Timing
	switch x.preset {
	case "":
	case "default":
		p = lease.Default()
	case "lan":
		p = lease.LAN()
	case "wan":
		p = lease.WAN()
	case "cautious":
		p = lease.Cautious()
	default:
		return fmt.Errorf("preset: %q is none of default, lan, wan and cautious", x.preset)
	}
	t := &x.timing
	if t.TTL == 0 && x.preset != "" {
		fill(&t.TTL, p.TTL)
		fill(&t.Beat, p.Beat)
		fill(&t.Misses, p.Misses)
	}
	return nil
}

func (x *explaining) presetRaft() error {
	x.raft.Beat, x.raft.Drift, x.raft.Margin = x.timing.Beat, x.timing.Drift, x.timing.Margin
	var p raft.Timing
	switch x.preset {
	case "":
		return nil
	case "default":
		p = raft.Default()
	case "lan":
		p = raft.LAN()
	case "wan":
		p = raft.WAN()
	default:
		return fmt.Errorf("preset: %q is none of default, lan and wan", x.preset)
	}
	t := &x.raft
	fill(&t.Heartbeat, p.Heartbeat)
	fill(&t.Election, p.Election)
	fill(&t.LeaderLease, p.LeaderLease)
	fill(&t.Commit, p.Commit)
	fill(&t.Beat, p.Beat)
	fill(&t.Stall, p.Stall)
	return nil
}

func fill[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (x *explaining) run(cmd *cobra.Command) error {
	if err := x.validate(cmd); err != nil {
		return cli.Exit(exitUsage, err)
	}
	m := meaning{Backend: x.backend}
	var text, drawing string
	if x.backend == "raft" {
		e, found := advise.Raft(x.raft, x.wish)
		m.TTLMS, m.BeatMS, m.Findings = ms(e.Timing.Heartbeat), ms(e.Timing.Beat), found
		m.TrustMS, m.PauseToleratedMS, m.FailoverMS, m.WorstFailoverMS = ms(e.Trust), ms(e.PauseTolerated), ms(e.Failover), ms(e.WorstFailover)
		text = e.String()
	} else {
		e, found := advise.Lease(x.timing, x.wish)
		m.TTLMS, m.BeatMS, m.Misses, m.Findings = ms(e.Timing.TTL), ms(e.Timing.Beat), e.Timing.Misses, found
		scan := x.wish.Engine.Scan
		m.TrustMS, m.PauseToleratedMS, m.FailoverMS, m.WorstFailoverMS = ms(e.Trust), ms(e.PauseTolerated), ms(e.Failover+scan), ms(e.WorstFailover+scan)
		text, drawing = e.String(), advise.Timeline(e, x.wish)
	}
	m.Verdict = advise.Worst(m.Findings)
	if !x.out.People() {
		err := cli.Sheet[meaning]{Name: func(m meaning) string { return string(m.Verdict) }}.One(cmd.OutOrStdout(), &x.out, m)
		return errors.Join(err, verdict(m.Findings))
	}
	w := cmd.OutOrStdout()
	if advise.Worst(m.Findings) != advise.Broken || m.Findings[0].Level != advise.Broken {
		if drawing != "" {
			drawing += "\n"
		}
		if _, err := fmt.Fprintf(w, "%s%s\n", drawing, text); err != nil {
			return err
		}
	}
	return errors.Join(printFindings(w, &x.out, m.Findings), verdict(m.Findings))
}

// verdict is the exit code of findings.
func verdict(found []advise.Finding) error {
	n := 0
	for _, f := range found {
		if f.Level == advise.Broken {
			n++
		}
	}
	switch n {
	case 0:
		return nil
	case 1:
		return cli.Exit(exitFailure, errors.New("1 thing is broken"))
	}
	return cli.Exit(exitFailure, fmt.Errorf("%d things are broken", n))
}

// printFindings prints them for people.
func printFindings(w io.Writer, out *cli.Output, found []advise.Finding) error {
	for _, f := range found {
		if err := findingSheet().Stream(w, out, f); err != nil {
			return err
		}
		if f.Fix != "" {
			if _, err := fmt.Fprintf(w, "%-27s fix: %s\n", "", f.Fix); err != nil {
				return err
			}
		}
	}
	return nil
}

func findingSheet() cli.Sheet[advise.Finding] {
	return cli.Sheet[advise.Finding]{
		Columns: []cli.Column[advise.Finding]{
			{Head: "LEVEL", Cell: func(f advise.Finding) string { return string(f.Level) }, Paint: func(f advise.Finding) cli.Colour {
				return map[advise.Level]cli.Colour{advise.OK: cli.Green, advise.Warning: cli.Yellow, advise.Broken: cli.Red}[f.Level]
			}},
			{Head: "CHECK", Cell: func(f advise.Finding) string { return f.Check }},
			{Head: "SAYS", Cell: func(f advise.Finding) string { return f.Says }},
		},
		Name: func(f advise.Finding) string { return f.Check },
	}
}
