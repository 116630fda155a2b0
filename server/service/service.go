package service

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/operator"
)

// Service is one instance. It is an http.Handler.
type Service struct {
	cfg        Config
	store      lease.Store
	engine     engine // the store, with bounds
	deployment string
	clock      clock.Clock
	reader     *feed.Reader
	feed       *feed.Feed
	metrics    *metrics
	spans      *termSpans
	sessions   *sessions
	duplicates *duplicates
	created    *operator.Register
	gate       *auth.Gate
	ownGate    bool // made here, so closed here
	routes     []Route
	handler    http.Handler
	document   []byte // OpenAPI

	ctx  context.Context // ends when streams and waits shall end
	stop context.CancelFunc
	work sync.WaitGroup
}

// New starts an instance: it asks the engine which deployment it is, and begins to
// watch. Close ends it.
func New(ctx context.Context, cfg Config) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, 3*cfg.CallTimeout)
	defer cancel()
	meta, err := cfg.Store.Meta(ctx)
	if err != nil {
		return nil, fmt.Errorf("service: the engine does not say which deployment it is: %w", err)
	}
	guarded := lease.Guard(cfg.Store, lease.GuardConfig{Declared: cfg.Declared, MaxTTL: cfg.MaxTTL})
	s := &Service{cfg: cfg, store: guarded, deployment: meta.Deployment, clock: cfg.Clock, gate: cfg.Gate}
	if s.gate == nil {
		if s.gate, err = auth.New(auth.Config{Listen: "127.0.0.1:0"}); err != nil {
			return nil, err
		}
		s.ownGate = true
	}
	s.metrics, s.spans = newMetrics(s), &termSpans{tracer: cfg.Tracer, open: make(map[string]openTerm)}
	s.sessions, s.duplicates = newSessions(s), &duplicates{s: s, told: make(map[string]bool)}
	s.reader = feed.NewReader(cfg.Store, cfg.Clock, cfg.CallTimeout, s.metrics.read)
	s.feed = feed.New(feed.Config{
		Store: cfg.Store, Reader: s.reader, Deployment: meta.Deployment, Timeout: cfg.CallTimeout, Clock: cfg.Clock, Log: cfg.Log,
		OnChange: s.changed, OnSight: s.metrics.sight, Sessions: s.sessions.feed,
	})
	s.engine, s.created = engine{s.store, s}, operator.NewRegister(operator.Store{Store: s.store, Call: cfg.CallTimeout})
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := s.mount(); err != nil {
		s.Close()
		return nil, err
	}
	s.work.Go(func() { s.feed.Run(s.ctx) })
	s.work.Go(s.probe)
	return s, nil
}

// changed hears of every change that the feed brings.
func (s *Service) changed(v lease.View, terms int, vacant time.Duration, back bool) {
	s.metrics.changed(v, terms, vacant, back)
	s.spans.changed(v, vacant)
}

// ServeHTTP implements http.Handler.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Deployment is the one that the engine stands for.
func (s *Service) Deployment() string { return s.deployment }

// Drain ends streams and waits, whose callers go on elsewhere; everything else is
// answered on. A server that stops calls it first.
func (s *Service) Drain() { s.stop() }

// Close ends what the instance has started. Requests under way may fail.
func (s *Service) Close() {
	s.stop()
	s.reader.Close()
	s.work.Wait()
	s.spans.close()
	if s.ownGate {
		s.gate.Close()
	}
}

// probePause is how often the engine is asked whether it has a quorum.
const probePause = 2 * time.Second

// probe keeps the health of the engine known also while nobody asks for anything.
func (s *Service) probe() {
	for {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.CallTimeout)
		_, err := s.store.Attributes(ctx, healthName)
		cancel()
		if s.ctx.Err() != nil {
			return
		}
		s.metrics.engine(err)
		select {
		case <-time.After(probePause):
		case <-s.ctx.Done():
			return
		}
	}
}

// healthName is a name to read, which nobody writes.
const healthName = "service/health"

// call bounds one call to the engine. What was sent shall have an outcome, so it is not
// cut off by a caller that goes away.
func (s *Service) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CallTimeout)
}

// body reads the body of a request.
func (s *Service) body(w http.ResponseWriter, r *http.Request, emptyAllowed bool, v any) error {
	if err := httpapi.ReadJSON(w, r, s.cfg.MaxBody, emptyAllowed, v); err != nil {
		return err
	}
	if f, ok := v.(form); ok {
		return f.settle()
	}
	return nil
}

func groupOf(r *http.Request) string { return r.PathValue("group") }
