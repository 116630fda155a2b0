package diagnose

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/advise"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/engines"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// roundTrips is the number of round trips to measure.
const roundTrips = 20

// doctor holds the flags of the command.
type doctor struct {
	conn    storecli.Connection
	out     cli.Output
	ttl     time.Duration
	measure time.Duration
	id      string
}

// diagnosis is the result in JSON.
type diagnosis struct {
	Store    string           `json:"store"`
	Verdict  advise.Level     `json:"verdict"`
	Findings []advise.Finding `json:"findings"`
}

func newDoctor(env cli.Env) *cobra.Command {
	d := &doctor{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check engine, clock, pauses and permissions, and say what to fix.",
		Long: `Check the engine (members, quorum, alarms), the round trip against the TTL, the clock and
the longest pause of this machine, permissions, record format, epoch, groups that nobody
leads, and node ids that several processes use; say what to fix. The command opens a
session for a moment and leads nothing. Run it on the machines on which the leaders run.

Exit code 1: something is broken. Warnings do not change the exit code.`,
		Example: `  tenure doctor --ttl=8s --measure=30s`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	d.conn.Flags(cmd.Flags(), env)
	d.out.Flag(cmd, env)
	f := cmd.Flags()
	f.DurationVar(&d.ttl, "ttl", lease.Default().TTL, "TTL of the leases")
	f.DurationVar(&d.measure, "measure", 3*time.Second, "how long to measure pauses")
	f.StringVar(&d.id, "id", "doctor", "node id of the session to open")
	return cmd
}

func (d *doctor) run(cmd *cobra.Command) error {
	if err := errors.Join(d.out.Open(cmd), storecli.CheckNode(d.id)); err != nil {
		return err
	}
	if d.measure < 0 || d.measure > time.Hour || d.ttl <= 0 || d.conn.Timeout <= 0 {
		return cli.Usage("ttl and timeout must be positive, and measure from 0 to 1h")
	}
	at, err := d.conn.Target()
	if err != nil {
		return err
	}
	found := d.examine(cmd, at)
	switch d.out.Format {
	case cli.FormatTable:
		err = printFindings(&d.out, found)
	case cli.FormatNDJSON, cli.FormatName:
		err = findingTable.List(&d.out, found)
	default:
		err = cli.Table[diagnosis]{}.One(&d.out, diagnosis{Store: strings.Join(at.URLs, ","), Verdict: advise.Worst(found), Findings: found})
	}
	return errors.Join(err, verdict(found))
}

// examine checks the machine and the engine at the same time.
func (d *doctor) examine(cmd *cobra.Command, at storecli.Target) []advise.Finding {
	ctx := cmd.Context()
	facts := advise.Facts{
		Timing: lease.Timing{TTL: d.ttl}, Service: at.Service, Endpoints: len(at.URLs), Clock: advise.ThisClock(),
		Throttled: advise.Throttled(), ID: d.id, Measured: d.measure,
	}
	var measuring sync.WaitGroup
	measuring.Go(func() { facts.Pause = advise.LongestPause(ctx, d.measure) })
	if cfg, ok, err := engines.Etcd(at.Engine, at.Options); at.Engine != "" && ok && err == nil {
		measuring.Go(func() {
			facts.Members = advise.QueryEtcd(ctx, advise.Cluster{
				Endpoints: cfg.Endpoints, TLS: cfg.TLS, Username: cfg.Username, Password: cfg.Password, Timeout: min(d.conn.Timeout, 3*time.Second),
			})
		})
	}
	o, err := d.conn.Open(ctx, storecli.Logger(cmd.ErrOrStderr(), slog.LevelError))
	if err != nil {
		measuring.Wait()
		found := slices.DeleteFunc(facts.Findings(), func(f advise.Finding) bool { return f.Check == "permission" || f.Check == "write" })
		return append([]advise.Finding{openFailed(err)}, found...)
	}
	defer o.Close()
	facts.Engine = o.Caps()
	if !at.Service {
		facts.Format = kv.Format // behind a service, only the service knows it
	}
	failed := d.query(ctx, o, &facts)
	measuring.Wait()
	return append(failed, facts.Findings()...)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// openFailed is the finding for a store that cannot be opened.
func openFailed(err error) advise.Finding {
	f := advise.Finding{Level: advise.Broken, Check: "store", Says: oneLine(err), Fix: "check that the engine or service runs, and that --store names it"}
	var none *storecli.NoServiceError
	var invalid *store.ArgumentError
	switch {
	case errors.As(err, &none):
		f.Says, f.Fix = oneLine(none.Err), none.Remedy
	case errors.Is(err, store.ErrNewer):
		f.Check, f.Fix = "format", "upgrade this program: a program that does not know the format must not write"
	case errors.As(err, &invalid) && strings.Contains(invalid.Rule, "a former version"):
		f.Check, f.Fix = "format", "use another --store-prefix, and raise the epoch: see docs/operations.md, Upgrade"
	case storecli.Denied(err):
		f.Check, f.Fix = "permission", "give the user of the engine the rights that docs/engines.md lists; for a service use --store-credential-file or --store-cert"
	case strings.Contains(f.Says, "TLS"), strings.Contains(f.Says, "certificate"), strings.Contains(f.Says, "https://") && strings.Contains(f.Says, "EOF"):
		f.Fix = "use etcds:// or https:// with --store-ca if the store uses TLS, otherwise etcd:// or http://"
	}
	return f
}

// query fills in the facts that the store knows, and returns what failed.
func (d *doctor) query(ctx context.Context, o *storecli.Opened, facts *advise.Facts) (failed []advise.Finding) {
	call := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, d.conn.Timeout)
		defer cancel()
		return f(ctx)
	}
	fail := func(check string, err error) {
		failed = append(failed, advise.Finding{Level: advise.Broken, Check: check, Says: oneLine(err)})
	}
	if err := call(func(ctx context.Context) (err error) { facts.Meta, err = o.Meta(ctx); return err }); err != nil {
		fail("meta", err)
	}
	for range roundTrips {
		sent := time.Now()
		if err := call(func(ctx context.Context) error { _, err := o.Read(ctx, d.id); return err }); err != nil {
			if !storecli.Denied(err) {
				fail("read", err)
			}
			break
		}
		facts.RoundTrips = append(facts.RoundTrips, time.Since(sent))
	}
	operated := operator.Store{Store: o.Store, Call: d.conn.Timeout}
	var err error
	if facts.Vacant, err = operated.Vacant(ctx); err != nil && !storecli.Denied(err) {
		fail("groups", err)
	}
	if found, err := operated.Duplicates(ctx, store.Scope{"*"}); err == nil {
		facts.Duplicates = found
	} else if !storecli.Denied(err) {
		fail("sessions", err)
	}
	if o.Service {
		at, _ := d.conn.Target()
		url := at.URLs[0]
		offset, known := advise.WallOffset(ctx, strings.TrimRight(url, "/")+"/healthz", at.TLS, d.conn.Timeout)
		facts.Members = append(facts.Members, advise.Member{Name: "service", URL: url, Leads: true, Offset: offset, OffsetOK: known})
	}
	if facts.Meta.Rewound {
		return failed // the store opens no session
	}
	facts.SessionErr = call(func(ctx context.Context) error {
		session, err := o.Open(ctx, tenure.Candidate{ID: d.id}, max(o.Caps().MinTTL, 2*time.Second), store.OpenOptions{Scope: store.Scope{d.id}})
		if err != nil {
			return err
		}
		return o.End(ctx, session.ID, store.Closed)
	})
	facts.Denied = storecli.Denied(facts.SessionErr)
	return failed
}
