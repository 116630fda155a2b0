package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/guard"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node/enginecalls"
	"github.com/tenurehq/tenure/reference/wait"
	"github.com/tenurehq/tenure/server/engines"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// backend is an elector and what a node needs around it.
type backend struct {
	elector tenure.Elector
	// standbys are the candidates that could take over, best first.
	standbys func(ctx context.Context) ([]tenure.Candidate, error)
	// deployment is the name in the stamps of this fleet; empty: not known yet.
	deployment func(ctx context.Context) (string, error)
	// close stops the elector. Terms have ended before.
	close func(ctx context.Context) error
}

var (
	// ErrTwin: another process runs under the same id.
	ErrTwin = errors.New("the id is in use")
	// ErrEngine: the engine refused this node, or did not answer.
	ErrEngine = errors.New("the engine cannot be used")
)

// open opens the backend of the configuration, for a node that is reached at address.
func (n *Node) open(ctx context.Context, address string) (*backend, error) {
	candidate := tenure.Candidate{ID: n.Config.ID, Address: address}
	switch n.Config.Store {
	default:
		store, err := n.Config.EngineConfig().Open(ctx)
		if err != nil {
			return nil, err
		}
		return n.openLease(ctx, store, candidate, store.Close)
	case StoreRaft:
		cfg := n.Config.raft(address)
		cfg.Clock, cfg.Log = n.clock, n.Config.Log
		if n.Config.Keeper != nil {
			cfg.Keeper = n.Config.Keeper
		}
		var err error
		if cfg.TLS, err = n.Config.TLS.load(); err != nil {
			return nil, err
		}
		node, err := raft.Open(cfg)
		if err != nil {
			return nil, err
		}
		return &backend{
			elector: node, close: node.Close, deployment: func(context.Context) (string, error) { return node.Deployment(), nil },
			standbys: func(context.Context) ([]tenure.Candidate, error) { return nil, nil }, // Raft chooses the successor itself
		}, nil
	case StoreMem:
		store := mem.New(mem.Options{Clock: n.clock})
		if err := n.resume(ctx, store); err != nil {
			store.Close()
			return nil, err
		}
		return n.openLease(ctx, store, candidate, store.Close)
	}
}

// EngineConfig is what the engine is opened with. ID and what follows are for raft.
type EngineConfig struct {
	Store, Password string
	TLS             TLSFiles
	ID, Group       string
	Peers           map[string]string
	ElectionTimeout time.Duration
}

// EngineConfig returns what the engine is opened with.
func (c Config) EngineConfig() EngineConfig {
	return EngineConfig{c.Store, c.Password, c.TLS, c.ID, c.Group, c.Peers, c.withDefaults().ElectionTimeout}
}

// Keeper opens the store of a keeper.
func (c EngineConfig) Keeper(ctx context.Context) (store.Store, error) {
	if c.Store != StoreRaft {
		return c.Open(ctx)
	}
	cfg := Config{ID: c.ID, Group: c.Group, Peers: c.Peers, ElectionTimeout: c.ElectionTimeout}.raft("")
	var err error
	if cfg.TLS, err = c.TLS.load(); err != nil {
		return nil, err
	}
	return raft.Notices(cfg)
}

// Open opens the engine.
func (c EngineConfig) Open(ctx context.Context) (engines.Store, error) {
	tlsConfig, err := c.TLS.load()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	st, err := engines.Open(ctx, c.Store, engines.Options{Password: c.Password, TLS: tlsConfig})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEngine, err)
	}
	return st, nil
}

// resume raises the tokens of a store in memory above those of earlier processes, which the
// ledger has.
func (n *Node) resume(ctx context.Context, store *mem.Store) error {
	r, err := n.Ledger.Resource(ctx, n.Config.Group)
	switch {
	case errors.Is(err, ledgerapi.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	_, err = store.RaiseEpoch(ctx, r.Token.Epoch()+1)
	return err
}

const openTimeout = 5 * time.Second

func (n *Node) openLease(ctx context.Context, st store.Store, candidate tenure.Candidate, shutdown func()) (b *backend, err error) {
	defer func() {
		if err != nil {
			shutdown()
		}
	}()
	st = enginecalls.Count(guard.Guard(st, guard.Config{}), n.called)
	cfg := lease.Config{
		Candidate: candidate, Scope: store.Scope{n.Config.Group}, Timing: n.Config.Timing,
		Health: n.Health, OnNote: n.noted, Log: n.Config.Log, Clock: n.clock,
	}
	if n.Config.Keeper != nil {
		cfg.Keeper = n.Config.Keeper
	}
	if err := n.awaitTwin(ctx, st, candidate); err != nil {
		return nil, err
	}
	if n.Config.Hooks != nil {
		cfg = n.Config.Hooks.Lease(cfg)
	}
	node, err := lease.New(st, cfg)
	if err != nil {
		return nil, err
	}
	elector, err := node.Elector(n.Config.Group)
	if err != nil {
		return nil, errors.Join(err, node.Close(ctx))
	}
	deployment := func(ctx context.Context) (string, error) {
		m, err := st.Meta(ctx)
		return m.Deployment, err
	}
	closeAll := func(ctx context.Context) error { defer shutdown(); return node.Close(ctx) }
	return &backend{elector: elector, close: closeAll, deployment: deployment, standbys: func(ctx context.Context) ([]tenure.Candidate, error) {
		sessions, err := st.Sessions(ctx, store.Scope{n.Config.Group}, store.Page{})
		var others []tenure.Candidate
		for _, s := range sessions {
			if s.Candidate.ID != n.Config.ID {
				others = append(others, s.Candidate)
			}
		}
		return others, err
	}}, nil
}

// Health reports the health of the ledger to the elector. A leader waits for SinkPatience to
// end; a node that does not lead must not win while the ledger cannot be used.
func (n *Node) Health(context.Context) error {
	if t := n.term.Load(); t != nil && t.Remaining() > 0 {
		return n.sink.Lasting()
	}
	return n.sink.Ready()
}

// Kept reports whether a keeper watches over this process.
func (n *Node) Kept() bool {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	return n.Config.Keeper != nil && n.Config.Keeper.Wait(now) == nil
}

// Deployment is the name in the stamps of this fleet.
func (n *Node) Deployment(ctx context.Context) (string, error) {
	if d := n.deployed.Load(); d != nil {
		return *d, nil
	}
	d, err := n.backend.deployment(ctx)
	if err == nil && d == "" {
		err = errors.New("no node has led yet")
	}
	if err != nil {
		return "", fmt.Errorf("%w: the deployment is not known: %w", ledgerapi.ErrUnavailable, err)
	}
	n.deployed.Store(&d)
	return d, nil
}

// called counts and traces a call to the engine.
func (n *Node) called(what string) {
	n.metrics.Calls.WithLabelValues(what).Inc()
	n.trace(Event{Kind: api.TraceCall, At: n.host.Now(), What: what})
}

func (n *Node) noted(note lease.Note) {
	n.metrics.Note(note)
	if note.Kind == lease.NoteMissed {
		what := ""
		if note.Err != nil {
			what = note.Err.Error()
		}
		n.trace(Event{Kind: api.TraceMissed, At: n.host.Now(), What: what})
	}
}

func (c Config) raft(address string) raft.Config {
	// Raft must notice a lost quorum before trust ends: see raft.Default.
	t := raft.Timing{Heartbeat: c.ElectionTimeout, LeaderLease: 3 * c.ElectionTimeout / 4}
	cfg := raft.Config{
		Candidate: tenure.Candidate{ID: c.ID, Address: address}, Group: c.Group, Peers: c.Peers, DataDir: c.DataDir, Timing: t.Resolve(),
	}
	if c.Hooks != nil {
		cfg = c.Hooks.Raft(cfg)
	}
	return cfg
}

// awaitTwin refuses to run beside another process of the same id. A killed process may also
// have left a session of this id, which expires within its TTL. So a node that finds a session
// waits that long, unless its owner answers.
func (n *Node) awaitTwin(ctx context.Context, store store.Store, me tenure.Candidate) error {
	const slack = 2 * time.Second // engines notice an expired session late
	var deadline time.Time
	for {
		twin, found, err := n.twin(ctx, store)
		if err != nil || !found {
			return err
		}
		where := twin.Candidate.Address
		if status, ok := askStatus(ctx, where); where != me.Address && ok && status.NodeID == me.ID && status.Group == n.Config.Group {
			return fmt.Errorf("%w: node %q of group %q runs at %s: give this one another --id, or stop that one", ErrTwin, me.ID, n.Config.Group, where)
		}
		if deadline.IsZero() {
			wait := twin.TTL + slack
			n.Config.Log.Warn("found a session of this id, waiting for it to expire in case its process was killed",
				"id", me.ID, "session", twin.ID, "address", where, "at_most", wait)
			deadline = time.Now().Add(wait)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: another process keeps a session of node %q in group %q alive (at %q): give this one another --id, or stop that one", ErrTwin, me.ID, n.Config.Group, where)
		}
		if !wait.For(ctx, 100*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

func (n *Node) twin(ctx context.Context, st store.Store) (store.Session, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	sessions, err := st.Sessions(ctx, store.Scope{n.Config.Group}, store.Page{})
	if err != nil {
		return store.Session{}, false, fmt.Errorf("look for another node %q: %w", n.Config.ID, err)
	}
	for _, s := range sessions {
		if s.Candidate.ID == n.Config.ID {
			return s, true, nil
		}
	}
	return store.Session{}, false, nil
}

// askStatus asks a node for its status; ok: it answered in time.
func askStatus(ctx context.Context, address string) (status api.Status, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/status", http.NoBody)
	if err != nil {
		return status, false
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return status, false
	}
	defer func() { _ = resp.Body.Close() }()
	const most = 1 << 20
	return status, json.NewDecoder(io.LimitReader(resp.Body, most)).Decode(&status) == nil
}

// Successor returns the best standby that is alive. A session outlives its process, and a group
// that is handed to a dead process stays vacant until the session expires.
func (n *Node) Successor(ctx context.Context) (string, error) {
	others, err := n.backend.standbys(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range others {
		if s, ok := askStatus(ctx, c.Address); ok && s.NodeID == c.ID && s.Group == n.Config.Group && s.LedgerOK {
			return c.ID, nil
		}
	}
	return "", fmt.Errorf("none of %d candidates is alive and reaches the ledger", len(others))
}
