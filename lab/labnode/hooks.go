// Package labnode implements the hooks of a node (node.Hooks) with which experiments observe
// and disturb it: a wrong clock, a pause at a moment of a term, work for the garbage
// collector, a trace of every event, and planted bugs.
package labnode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node"
	"github.com/tenurehq/tenure/reference/node/nodehttp"
	"github.com/tenurehq/tenure/server/httpapi"
)

// Config says how a node is disturbed. The zero value observes only.
type Config struct {
	// ID is that of the node.
	ID string
	// ClockSkew moves this node's wall clock, by which nothing is decided. ClockDrift (a
	// fraction: 0.05 is five percent fast) makes all its clocks run at another rate.
	ClockSkew  time.Duration
	ClockDrift float64
	// StopDelay is how long a leader continues after it was told to stop, like work that is
	// slow to stop.
	StopDelay time.Duration
	// PeerProxies (id to host:port) are where this node reaches Raft peers, instead of at
	// their own addresses.
	PeerProxies map[string]string
	// RaftLease is how long a Raft leader continues without a quorum before Raft itself ends its
	// leadership, at most the election timeout. If it is longer than trust, an experiment can
	// observe the end of trust.
	RaftLease time.Duration
	// Trace is a folder for the trace, one labapi.TraceLine per line, in ID.trace.
	Trace string
	// Plant are bugs; only the planted build has any.
	Plant []plant.Bug
	// Log, by default slog.Default.
	Log *slog.Logger
}

// Validate says which rules are broken for a node with that --store.
func (c Config) Validate(store string) error {
	var all []error
	bad := func(field, format string, args ...any) {
		all = append(all, &node.ConfigError{Field: field, Rule: fmt.Sprintf(format, args...)})
	}
	if c.StopDelay < 0 {
		bad("stop-delay", "%v must not be negative", c.StopDelay)
	}
	if !(c.ClockDrift > -1 && c.ClockDrift <= 10) { // NaN is not
		bad("clock-drift", "%v must be above -1 and at most 10: it is a fraction, 0.05 is five percent fast", c.ClockDrift)
	}
	if store != node.StoreRaft && c.RaftLease != 0 {
		bad("raft-lease", "is for --store=raft")
	}
	if store == node.StoreRaft && len(c.Plant) > 0 {
		bad("plant", "bugs are planted in the lease, which raft does not use")
	}
	return errors.Join(all...)
}

// Hooks are those of one node.
type Hooks struct {
	cfg        Config
	log        *slog.Logger
	host       clock.Clock
	clock      *skewedClock
	pause      pause
	collecting atomic.Bool // the garbage collector is kept busy
	attempts   *attempts
	trace      *trace // nil: none
}

var _ node.Hooks = (*Hooks)(nil)

// New returns the hooks of a node. Close ends its trace.
func New(cfg Config) (*Hooks, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	h := &Hooks{cfg: cfg, log: cfg.Log.With("node", cfg.ID), host: clock.System(), attempts: newAttempts()}
	h.clock = newClock(h.host, cfg.ClockSkew, cfg.ClockDrift)
	h.clock.jumps = cfg.byWallClock()
	var err error
	h.trace, err = openTrace(cfg.Trace, cfg.ID, h.log)
	return h, err
}

// Close ends the trace.
func (h *Hooks) Close() { h.trace.close() }

// Clock implements node.Hooks.
func (h *Hooks) Clock() clock.Clock { return h.clock }

// Raft implements node.Hooks.
func (h *Hooks) Raft(cfg raft.Config) raft.Config {
	if h.cfg.RaftLease != 0 {
		cfg.Timing.LeaderLease = h.cfg.RaftLease
	}
	if len(h.cfg.PeerProxies) == 0 {
		return cfg
	}
	through := map[string]string{}
	for id, proxy := range h.cfg.PeerProxies {
		through[cfg.Peers[id]] = proxy
	}
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if proxy, ok := through[address]; ok {
			address = proxy
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	return cfg
}

// Reached implements node.Hooks.
func (h *Hooks) Reached(moment string) {
	h.stopAt(moment)
	if moment == api.MomentResigning {
		time.Sleep(h.cfg.stopDelay())
	}
}

// Observe implements node.Hooks.
func (h *Hooks) Observe(e node.Event) {
	if e.Kind == api.TraceAttempt {
		h.attempts.add(e.At, e.Token)
	}
	h.trace.event(e)
}

// Handler implements node.Hooks: it adds the routes under /lab, and the lab's fields of GET
// /status.
func (h *Hooks) Handler(next http.Handler) http.Handler {
	mux := httpapi.NewMux()
	mux.Handle("POST", "/lab/clock", h.postClock)
	mux.Handle("POST", "/lab/pause", h.postPause)
	mux.Handle("DELETE", "/lab/pause", h.deletePause)
	mux.Handle("POST", "/lab/garbage", h.postGarbage)
	mux.Handle("GET", "/lab/attempts", h.getAttempts)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, "/v1")
		switch {
		case strings.HasPrefix(path, "/lab/") && nodehttp.Local(r):
			mux.ServeHTTP(w, r)
		case strings.HasPrefix(path, "/lab/"):
			ledgerapi.WriteError(w, &httpapi.Problem{Status: http.StatusForbidden, Code: api.CodeDenied, Detail: "allowed only from this machine"})
		case r.Method == http.MethodGet && path == "/status":
			h.getStatus(w, r, next)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (h *Hooks) getStatus(w http.ResponseWriter, r *http.Request, next http.Handler) {
	answer := &answer{ResponseWriter: w}
	next.ServeHTTP(answer, r)
	s := labapi.Status{Lab: true, WallMS: h.clock.wall(time.Now()).UnixMilli()}
	if err := json.Unmarshal(answer.body.Bytes(), &s.Status); err != nil {
		ledgerapi.WriteError(w, fmt.Errorf("status %q: %w", answer.body.Bytes(), err))
		return
	}
	httpapi.WriteJSON(w, http.StatusOK, s)
}

// answer keeps a body instead of sending it.
type answer struct {
	http.ResponseWriter
	body bytes.Buffer
}

func (a *answer) WriteHeader(int) {}

func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

func (h *Hooks) getAttempts(w http.ResponseWriter, _ *http.Request) {
	httpapi.WriteJSON(w, http.StatusOK, h.attempts.list(h.cfg.ID))
}

const maxBody = 4096

// postClock changes this node's clocks.
func (h *Hooks) postClock(w http.ResponseWriter, r *http.Request) {
	var to labapi.Clock
	if err := httpapi.ReadJSON(w, r, maxBody, false, &to); err != nil {
		ledgerapi.WriteError(w, err)
		return
	}
	const most = 1_000_000
	if to.DriftPPM <= -most || to.DriftPPM > 10*most {
		ledgerapi.WriteError(w, &httpapi.Problem{Status: http.StatusBadRequest, Code: api.CodeRequest, Detail: "drift_ppm must be above -1000000 and at most 10000000: a clock cannot stop or go back"})
		return
	}
	h.clock.set(to)
	h.log.Warn("lab: clock changed", "skew_ms", to.SkewMS, "drift_ppm", to.DriftPPM)
	httpapi.WriteJSON(w, http.StatusOK, to)
}
