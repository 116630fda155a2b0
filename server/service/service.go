package service

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/pulse"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/auth/audit"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/service/metrics"
	"github.com/tenurehq/tenure/server/service/sessions"
	"github.com/tenurehq/tenure/server/service/traces"
	"github.com/tenurehq/tenure/store"
)

// Service is one instance of the service. It is an http.Handler.
type Service struct {
	cfg        Config
	store      store.Store
	engine     engine // the store, with bounds and metrics
	deployment string
	instance   string // see newInstance
	clock      clock.Clock
	reader     *feed.Reader
	feed       *feed.Feed
	metrics    *metrics.Metrics
	spans      *traces.Spans
	sessions   *sessions.Cache
	keeper     *pulse.Keeper // of the clients that ServePeers serves
	gate       *auth.Gate
	ownGate    bool // New made the gate, so Close closes it
	routes     []Route
	handler    http.Handler
	document   []byte // OpenAPI

	ctx  context.Context // ends streams and waits
	stop context.CancelFunc
	work sync.WaitGroup
}

// New starts an instance: it asks the engine for its deployment and starts to watch it. Close
// stops it.
func New(ctx context.Context, cfg Config) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, 3*cfg.CallTimeout)
	defer cancel()
	meta, err := cfg.Store.Meta(ctx)
	if err != nil {
		return nil, fmt.Errorf("service: read the deployment from the engine: %w", err)
	}
	guarded := guard.Guard(cfg.Store, guard.Config{Declared: cfg.Declared, MaxTTL: cfg.MaxTTL})
	s := &Service{cfg: cfg, store: guarded, deployment: meta.Deployment, instance: newInstance(), clock: cfg.Clock, gate: cfg.Gate}
	if s.gate == nil {
		if s.gate, err = auth.New(auth.Config{Listen: "127.0.0.1:0"}); err != nil {
			return nil, err
		}
		s.ownGate = true
	}
	s.keeper = pulse.NewKeeper(cfg.Store, cfg.Log)
	s.metrics = metrics.New(metrics.Source{Gate: s.gate.Stats, Policies: s.policies, Leaders: s.leaders})
	s.spans = traces.New(cfg.Tracer, func(group string) (store.View, bool) { return s.feed.View(group) })
	s.engine = engine{s.store, s}
	s.sessions = sessions.New(sessions.Config{
		Session: s.engine.Session, MinTTL: s.store.Caps().MinTTL, Duplicate: s.metrics.Duplicates.Inc, Log: cfg.Log,
		Ended: func(id store.SessionID, why store.Reason) {
			s.keeper.Drop(id)
			s.metrics.SessionEnded(why)
		},
		Room: func(candidates int) error { return s.gate.Room(auth.CandidateIn, candidates, 1) },
	})
	s.reader = feed.NewReader(cfg.Store, cfg.Clock, cfg.CallTimeout, func(_ time.Duration, err error) { s.metrics.EngineAnswered(err) })
	s.feed = feed.New(feed.Config{
		Store: cfg.Store, Reader: s.reader, Deployment: meta.Deployment, Timeout: cfg.CallTimeout, Clock: cfg.Clock, Log: cfg.Log,
		OnSight: s.metrics.EngineAnswered, Sessions: s.sessions.Feed,
		OnChange: func(v store.View, terms int, vacant time.Duration, back bool) {
			s.metrics.Changed(v, terms, vacant, back)
			s.spans.Changed(v, vacant)
		},
	})
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := s.mount(); err != nil {
		s.Close()
		return nil, err
	}
	s.work.Go(func() { s.feed.Run(s.ctx) })
	s.work.Go(s.probe)
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Deployment returns the deployment of the engine.
func (s *Service) Deployment() string { return s.deployment }

// Drain ends streams and waits, so that their callers go to another instance. Other requests
// are still answered. A server that stops calls it first.
func (s *Service) Drain() { s.stop() }

// Close stops the instance. Requests that are being served may fail.
func (s *Service) Close() {
	s.stop()
	s.reader.Close()
	s.work.Wait()
	s.spans.Close()
	if s.ownGate {
		s.gate.Close()
	}
}

// probePause is how often the instance checks that the engine has a quorum.
const probePause = 2 * time.Second

// probe checks the health of the engine, also while there are no requests.
func (s *Service) probe() {
	for {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.CallTimeout)
		_, err := s.store.Attributes(ctx, healthName)
		cancel()
		if s.ctx.Err() != nil {
			return
		}
		s.metrics.EngineAnswered(err)
		select {
		case <-time.After(probePause):
		case <-s.ctx.Done():
			return
		}
	}
}

// healthName is a name that probe reads. Nobody writes it.
const healthName = "service/health"

// call bounds one call to the engine. A caller that goes away does not cancel it: the call
// must have an outcome.
func (s *Service) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CallTimeout)
}

// audit records what was done and what failed. What a handler denied is recorded by answer.
func (s *Service) audit(ctx context.Context, what, group string, token fence.Token, err error, reason string) {
	if err == nil || explain(err).Status != http.StatusForbidden {
		s.record(ctx, what, group, token, err, reason)
	}
}

func (s *Service) record(ctx context.Context, what, group string, token fence.Token, err error, reason string) {
	e := audit.Entry{What: what, Group: group, Token: token, Result: audit.Done, Reason: reason}
	if err != nil {
		p := explain(err)
		e.Result, e.Reason = audit.Failed, p.Code
		if p.Status == http.StatusForbidden {
			e.Result = audit.Denied
		}
	}
	s.gate.Audit(ctx, e)
}

// Limits suit a service with long-lived streams: they allow as many connections as the gate
// allows streams, and some for other requests.
func Limits() httpapi.Limits {
	return httpapi.Limits{
		Connections: 25_000, HeaderBytes: 32 << 10, Read: 15 * time.Second, Write: 60 * time.Second, Idle: 2 * time.Minute, Grace: 15 * time.Second,
		SendBuffer: 64 << 10, // a stream that is not read blocks soon, and is cut off
	}
}

// Serve serves the instance on ln until ctx ends. Then it ends streams and waits first, so
// that their callers go to another instance, and finishes other requests within the grace
// period. With a TLS configuration it serves TLS.
func (s *Service) Serve(ctx context.Context, ln net.Listener, t *tls.Config, l httpapi.Limits) error {
	l.TLS = t
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		s.Drain()
	})
	err := httpapi.Serve(ctx, ln, s, l, s.cfg.Log)
	if !stop() {
		<-drained
	}
	return err
}
