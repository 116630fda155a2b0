package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/advise"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store/kv"
)

// roundTrips is how many are measured.
const roundTrips = 20

// doctoring is what the flags of doctor say.
type doctoring struct {
	desk
	ttl     time.Duration
	measure time.Duration
	id      string
}

// diagnosis is the answer for programs.
type diagnosis struct {
	Store    string           `json:"store"`
	Verdict  advise.Level     `json:"verdict"`
	Findings []advise.Finding `json:"findings"`
}

func newDoctor(env func(string) (string, bool)) *cobra.Command {
	q := &doctoring{}
	cmd := q.verb(&cobra.Command{
		Use:   "doctor",
		Short: "Look at engine, clock, pauses and permissions, and say what to fix",
		Long: `Look at the engine (members, quorum, alarms), the round trip against the TTL, the clock
and the longest pause of this machine, permissions, record format, epoch and node ids that
several processes use, and say what to fix. It opens a session for a moment, and leads nothing. Run it where the leaders run.

Exit code 1: something is broken; 0 with warnings.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return q.run(cmd) },
	}, env)
	f := cmd.Flags()
	f.DurationVar(&q.ttl, "ttl", lease.Default().TTL, "the TTL that the fleet uses")
	f.DurationVar(&q.measure, "measure", 3*time.Second, "how long to look for pauses")
	f.StringVar(&q.id, "id", "doctor", "the node as which a session is opened")
	return cmd
}

func (q *doctoring) run(cmd *cobra.Command) error {
	if err := errors.Join(q.out.Validate(), nodeValid(q.id)); err != nil {
		return cli.Exit(exitUsage, err)
	}
	if q.measure < 0 || q.measure > time.Hour || q.ttl <= 0 || q.conn.timeout <= 0 {
		return cli.Exit(exitUsage, errors.New("ttl and timeout must be positive, and measure from 0 to 1h"))
	}
	at, err := q.conn.target()
	if err != nil {
		return cli.Exit(exitUsage, err)
	}
	found := q.look(cmd, at)
	out := diagnosis{Store: strings.Join(at.urls, ","), Verdict: advise.Worst(found), Findings: found}
	if !q.out.People() {
		err = findingsOf(cmd.OutOrStdout(), q, out)
	} else {
		err = printFindings(cmd.OutOrStdout(), &q.out, found)
	}
	return errors.Join(err, verdict(found))
}

// findingsOf prints one line a finding where lines are asked for, and one document
// otherwise.
func findingsOf(w io.Writer, q *doctoring, out diagnosis) error {
	if q.out.Format == cli.NDJSON || q.out.Format == cli.Name {
		return findingSheet().Print(w, &q.out, out.Findings)
	}
	return diagnosisSheet().One(w, &q.out, out)
}

// look gathers the facts, machine and engine at the same time.
func (q *doctoring) look(cmd *cobra.Command, at target) []advise.Finding {
	ctx := cmd.Context()
	facts := advise.Facts{Timing: lease.Timing{TTL: q.ttl}, Service: at.service, Named: len(at.urls), Clock: advise.ThisClock(), Throttled: advise.Throttled(), As: q.id}
	if !at.service {
		facts.Engine = advise.Etcd()
	}
	var machine sync.WaitGroup
	defer machine.Wait()
	machine.Go(func() { facts.Pause = advise.LongestPause(ctx, q.measure) })
	facts.Measured = q.measure
	if !at.service && !q.conn.dev {
		machine.Go(func() { facts.Members = q.members(ctx, at) })
	}
	o, err := q.conn.open(ctx, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelError})))
	var first []advise.Finding
	if err != nil {
		first = append(first, unopened(err))
	} else {
		defer o.Close()
		facts.Format = kv.Format
		if at.service {
			facts.Format = 0 // it is the service's to know
		}
		first = append(first, q.ask(ctx, o, &facts)...)
	}
	machine.Wait()
	found := facts.Findings()
	if err != nil {
		found = without(found, "permission", "write") // nothing was tried
	}
	return append(first, found...)
}

func without(found []advise.Finding, checks ...string) []advise.Finding {
	var out []advise.Finding
	for _, f := range found {
		keep := true
		for _, c := range checks {
			keep = keep && f.Check != c
		}
		if keep {
			out = append(out, f)
		}
	}
	return out
}

// unopened says why the store could not be opened.
func unopened(err error) advise.Finding {
	f := advise.Finding{Level: advise.Broken, Check: "store", Says: strings.ReplaceAll(err.Error(), "\n", "; "), Fix: "see that the engine or service runs, and that --store names it"}
	var nobody *nobodyError
	var wrong *lease.ArgumentError
	switch {
	case errors.As(err, &nobody):
		f.Says, f.Fix = strings.ReplaceAll(nobody.error.Error(), "\n", "; "), nobody.todo
	case errors.Is(err, lease.ErrNewer):
		f.Check, f.Fix = "format", "upgrade this program: one that does not know the format must not write"
	case errors.As(err, &wrong) && strings.Contains(wrong.Rule, "a former version"):
		f.Check, f.Fix = "format", "use another --store-prefix, and raise the epoch: see docs/operations.md, Upgrade"
	case denied(err):
		f.Check, f.Fix = "permission", "read and write on the prefix for the user of --store-user; for a service --store-token-file or --store-cert"
	case strings.Contains(f.Says, "TLS"), strings.Contains(f.Says, "certificate"), strings.Contains(f.Says, "https://") && strings.Contains(f.Says, "EOF"):
		f.Fix = "etcds:// or https:// with --store-ca where it speaks TLS, etcd:// or http:// where it does not"
	}
	return f
}

func (q *doctoring) members(ctx context.Context, at target) []advise.Member {
	cfg, err := q.conn.etcd(at)
	if err != nil {
		return nil
	}
	return advise.AskEtcd(ctx, advise.Where{
		Endpoints: cfg.Endpoints, TLS: cfg.TLS, Username: cfg.Username, Password: cfg.Password, Timeout: min(q.conn.timeout, 3*time.Second),
	})
}

// ask fills the facts that the store tells.
func (q *doctoring) ask(ctx context.Context, o *opened, facts *advise.Facts) []advise.Finding {
	var first []advise.Finding
	call := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, q.conn.timeout)
		defer cancel()
		return f(ctx)
	}
	fail := func(check string, err error) {
		first = append(first, advise.Finding{Level: advise.Broken, Check: check, Says: strings.ReplaceAll(err.Error(), "\n", "; ")})
	}
	if err := call(func(ctx context.Context) (err error) { facts.Meta, err = o.Meta(ctx); return err }); err != nil {
		fail("meta", err)
	}
	if o.Service {
		facts.Engine = advise.Engine{Name: "the service", MinTTL: o.Caps().MinTTL}
	}
	for range roundTrips {
		sent := time.Now()
		if err := call(func(ctx context.Context) error { _, err := o.Read(ctx, q.id); return err }); err != nil {
			if !denied(err) {
				fail("read", err)
			}
			break
		}
		facts.RoundTrips = append(facts.RoundTrips, time.Since(sent))
	}
	if found, err := (operator.Store{Store: o.Store, Call: q.conn.timeout}).Duplicates(ctx, lease.Scope{"*"}); err == nil {
		facts.Duplicates = found
	} else if !denied(err) {
		fail("sessions", err)
	}
	if facts.Meta.Rewound {
		return first // nobody gets a session
	}
	facts.Wrote = call(func(ctx context.Context) error {
		session, err := o.Open(ctx, tenure.Candidate{ID: q.id}, max(o.Caps().MinTTL, 2*time.Second), lease.OpenOptions{Scope: lease.Scope{q.id}})
		if err != nil {
			return err
		}
		return o.Store.Close(ctx, session.ID, lease.Closed)
	})
	facts.Denied = denied(facts.Wrote)
	if o.Service {
		if host, _, ok := strings.Cut(o.Where, ","); ok || host != "" {
			at, _ := q.conn.target()
			offset, known := advise.WallOffset(ctx, strings.TrimRight(host, "/")+"/healthz", at.tls, q.conn.timeout)
			facts.Members = append(facts.Members, advise.Member{Name: "service", URL: host, Leads: true, Offset: offset, OffsetOK: known})
		}
	}
	return first
}

func diagnosisSheet() cli.Sheet[diagnosis] {
	return cli.Sheet[diagnosis]{Name: func(d diagnosis) string { return string(d.Verdict) }}
}
