package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/config"
	"github.com/tenurehq/tenure/reference/ledger/client"
	"github.com/tenurehq/tenure/reference/node/failover"
	"github.com/tenurehq/tenure/reference/node/ledgerhealth"
	"github.com/tenurehq/tenure/reference/node/nodemetrics"
	"github.com/tenurehq/tenure/reference/node/pause"
	"github.com/tenurehq/tenure/reference/scheduler"
	"github.com/tenurehq/tenure/reference/wait"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// Node is one process of a fleet.
type Node struct {
	Config    Config
	host      clock.Clock // for comparing with other processes
	clock     clock.Clock // for the lease: the host's, or that of the hooks
	Ledger    *client.Client
	sink      *ledgerhealth.Health
	metrics   *nodemetrics.Metrics
	pauses    *pause.Meter
	Scheduler *scheduler.Scheduler
	backend   *backend
	Address   string

	view    atomic.Pointer[view]
	vacancy atomic.Pointer[failover.Vacancy]
	term    atomic.Pointer[begun]   // of this node, from its start until the work has returned
	leading atomic.Pointer[Leading] // while this node takes calls
	// unsealed counts the terms in a row whose work could not begin.
	unsealed atomic.Int32
	leaders  leaders
	deployed atomic.Pointer[string] // the name of the deployment; nil: not known yet
	highest  atomic.Uint64          // the highest number that was taken, as far as this node knows
}

// begun is a term of this node and when it began, on the host's clock.
type begun struct {
	*tenure.Term
	at clock.Instant
}

// Run runs the node until ctx ends. Then it hands the group over, if it leads, and answers the
// last request. It calls ready when the node serves. A ConfigError means that the configuration
// can never work. If the ledger or the engine does not answer, it waits.
func (n *Node) Run(ctx context.Context, handler http.Handler, ready func(api.Ready) error) (err error) {
	defer n.Ledger.Close()
	// Listen first: if the port is in use, nothing else was started.
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", n.Config.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() { _ = ln.Close() }()
	n.Address = n.Config.Advertise
	if n.Address == "" {
		n.Address = "http://" + ln.Addr().String()
	}
	if err := n.await(ctx, n.checkLedger); err != nil {
		return err
	}
	err = n.await(ctx, func(ctx context.Context) (err error) { n.backend, err = n.open(ctx, n.Address); return err })
	if err != nil {
		return err
	}

	// The node serves until the group was handed over.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	served := make(chan error, 1)
	running.Go(func() {
		served <- httpapi.Serve(serving, ln, httpapi.OnlyHosts(handler, n.names()...), n.Config.HTTP, n.Config.Log)
	})
	running.Go(func() { n.observe(serving) })
	running.Go(func() { n.pauses.Run(serving) })
	running.Go(func() { n.keepWarm(serving) })
	err = ready(api.Ready{ID: n.Config.ID, Addr: ln.Addr().String(), URL: "http://" + ln.Addr().String(), PID: os.Getpid()})
	if err == nil {
		err = n.campaign(ctx, served)
	}

	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err = errors.Join(err, n.backend.close(closing))
	stop()
	running.Wait()
	return err
}

const (
	// ledgerTimeout is how long a ledger may take to answer a node that starts.
	ledgerTimeout = 5 * time.Second
	closeTimeout  = 5 * time.Second
)

// New returns a node. It does nothing yet.
func New(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	cfg.Log = cfg.Log.With("node", cfg.ID)
	n := &Node{Config: cfg, host: clock.System()}
	n.clock = n.host
	if cfg.Hooks != nil {
		n.clock = cfg.Hooks.Clock()
	}
	var err error
	n.sink = ledgerhealth.New(n.host, cfg.SinkPatience, cfg.Log)
	n.pauses = &pause.Meter{Clock: n.host}
	n.metrics = nodemetrics.New(n.Config.Group, n, n.Config.ttl(), n.pauses)
	if n.Ledger, err = client.New(client.Config{URL: cfg.Ledger, Holder: cfg.ID, Timeout: cfg.WriteTimeout}); err != nil {
		return nil, config.Errorf("ledger", "%v", err)
	}
	n.Scheduler, err = n.newScheduler()
	return n, err
}

// await tries until the ledger or the engine answers, or ctx ends: they may be started after
// the node. It logs the first failure and the end of the wait.
func (n *Node) await(ctx context.Context, try func(context.Context) error) error {
	const most = 2 * time.Second
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, most) {
		err := try(ctx)
		first := pause == 100*time.Millisecond
		switch {
		case err == nil && !first:
			n.Config.Log.Info("connected after retries")
			return nil
		case err == nil, !ledgerhealth.Unanswered(err) && (!errors.Is(err, ErrEngine) || store.Permanent(err)):
			return err
		case first:
			n.Config.Log.Warn("cannot connect yet; retrying", "err", err)
		}
		if !wait.For(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

// checkLedger checks that the ledger is healthy: a node without a ledger could be elected but do
// nothing.
func (n *Node) checkLedger(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	began := n.host.Now()
	err := n.Ledger.Healthy(ctx)
	n.sink.Probed(began, err)
	if err != nil {
		return fmt.Errorf("no ledger at %s: %w; start one with `fleet ledger`, or give its URL with --ledger", n.Config.Ledger, err)
	}
	return nil
}

// campaign leads whenever this node is elected, until ctx ends or the server fails.
func (n *Node) campaign(ctx context.Context, served <-chan error) error {
	lctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	led := make(chan error, 1)
	go func() {
		led <- tenure.Lead(lctx, observed{n.backend.elector, n}, n.work,
			tenure.WithSinks(sealing{n.Ledger.Sealer(n.Config.Group), n}), tenure.WithLog(n.Config.Log),
			tenure.WithSealTimeout(n.Config.WriteTimeout), tenure.WithBackoff(50*time.Millisecond, 200*time.Millisecond))
	}()
	select {
	case <-ctx.Done():
		if n.Config.Exit != nil {
			overrun := time.AfterFunc(n.Config.StopTimeout, func() {
				n.Config.Log.Error("the work has not stopped in time, ending the process", "after", n.Config.StopTimeout)
				n.Config.Exit(lease.OverrunExitCode)
			})
			defer overrun.Stop()
		}
		n.handOver(ctx)
		stop(context.Cause(ctx))
		<-led
		return nil
	case err := <-served:
		stop(err)
		<-led
		return err
	case err := <-led:
		return err
	}
}

// handOver transfers the group to the best standby that is known. Without one it resigns.
func (n *Node) handOver(ctx context.Context) {
	t := n.term.Load()
	if t == nil || t.Check() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.Config.WriteTimeout)
	defer cancel()
	to, err := n.Successor(ctx)
	if err == nil {
		if err = t.TransferTo(ctx, to); err == nil || t.Check() != nil {
			return
		}
	}
	n.Config.Log.Info("resigning, no successor is known", "group", n.Config.Group, "token", t.Token(), "reason", err)
	_ = t.Resign(ctx)
}

// sealing reports when the ledger was sealed.
type sealing struct {
	fence.Sealer
	n *Node
}

func (s sealing) Seal(ctx context.Context, stamp fence.Stamp) error {
	at := s.n.host.Now()
	err := s.Sealer.Seal(ctx, stamp)
	s.n.sink.Sealed(err)
	if err == nil {
		s.n.trace(Event{Kind: api.TraceSealed, At: at, End: s.n.host.Now(), Token: stamp.Token})
	}
	return err
}

// observed is the backend's elector. It records when terms begin, and campaigns only while
// the ledger can be used.
type observed struct {
	tenure.Elector
	n *Node
}

func (o observed) Campaign(ctx context.Context) (*tenure.Term, error) {
	n := o.n
	// Lead itself pauses only briefly, so that a group can be handed back soon. A ledger that
	// refused the seal, because it belongs to another deployment or has a higher mark, would
	// refuse it again, so let other nodes try first.
	if k := n.unsealed.Load(); k > 0 && !wait.For(ctx, min(100*time.Millisecond<<min(k, 10), 5*time.Second)) {
		return nil, context.Cause(ctx)
	}
	term, err := o.whileUsable(ctx)
	if err != nil {
		return nil, err
	}
	n.unsealed.Add(1)
	t := &begun{term, n.host.Now()}
	n.term.Store(t)
	n.metrics.Began(n.electing(t))
	n.trace(Event{Kind: api.TraceBegan, At: t.at, Token: term.Token()})
	context.AfterFunc(term.Context(), func() {
		cause := nodemetrics.Ending(context.Cause(term.Context()))
		n.trace(Event{Kind: api.TraceEnded, At: n.host.Now(), Token: term.Token(), What: cause})
		n.metrics.Ended(cause)
	})
	n.Config.Log.Info("term begun", "group", term.Group(), "token", term.Token())
	n.reached(api.MomentGranted)
	return term, nil
}

// whileUsable stops the campaign when the ledger can no longer be used: a term that cannot
// seal it only wastes a token.
func (o observed) whileUsable(ctx context.Context) (*tenure.Term, error) {
	for {
		if err := o.n.sink.Await(ctx); err != nil {
			return nil, err
		}
		ready, done := o.n.sink.WhileReady(ctx)
		term, err := o.Elector.Campaign(ready)
		unusable := errors.Is(context.Cause(ready), ledgerhealth.ErrUnusable)
		done()
		if err == nil || ctx.Err() != nil || !unusable {
			return term, err
		}
	}
}

// electing is how long the election took, from when this node saw the end of the term before.
// It is 0 if this node saw none, as after a transfer.
func (n *Node) electing(t *begun) time.Duration {
	if v := n.vacancy.Load(); v != nil && v.Token+1 == t.Token() && v.At < t.at {
		return t.at.Sub(v.At)
	}
	return 0
}

func (n *Node) newScheduler() (*scheduler.Scheduler, error) {
	s, err := scheduler.New(scheduler.Config{
		Ledger: n.Ledger, Resource: n.Config.Group, Tick: n.Config.Tick, Grace: n.Config.MisfireGrace, Workers: n.Config.Workers, Clock: n.clock,
		Sending: func() { n.reached(api.MomentSend) }, Log: n.Config.Log, Metrics: n.metrics.Scheduler(),
	})
	if err != nil {
		return nil, config.Errorf("scheduler", "%v", err)
	}
	return s, nil
}

// names are those by which callers may reach this node.
func (n *Node) names() []string {
	names := append([]string{n.Config.Listen}, n.Config.Hosts...)
	if u, err := url.Parse(n.Address); err == nil {
		names = append(names, u.Host)
	}
	return names
}
