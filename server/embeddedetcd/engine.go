package embeddedetcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// ErrNotReady: the member did not begin to serve in time.
var ErrNotReady = errors.New("not ready in time")

// Engine is a running member.
type Engine struct {
	plan    *plan
	dir     *dataDir
	etcd    *embed.Etcd
	halt    *halt
	drain   *drain
	errs    chan error
	stop    sync.Once
	stopErr error
	stopped chan struct{} // Stop has begun
	watcher sync.WaitGroup
}

// Start runs a member and returns when it serves clients; in a cluster that needs
// a quorum, so its members are started at the same time. ctx bounds the start
// alone. A *ConfigError says that the settings cannot work; ErrNotReady that the
// member was started in vain and was stopped again.
func Start(ctx context.Context, c Config) (*Engine, error) {
	p, err := c.plan()
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	for _, n := range p.notices {
		p.Logger.Warn(n, "member", p.Name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.ReadyTimeout, ErrNotReady)
	defer cancel()

	dir, err := openDataDir(p.DataDir)
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w", p.Name, err)
	}
	e, err := start(ctx, p, dir)
	if err != nil {
		dir.abandon(!p.alone())
		return nil, fmt.Errorf("engine %s: %w", p.Name, err)
	}
	return e, nil
}

func start(ctx context.Context, p *plan, dir *dataDir) (*Engine, error) {
	if p.client == nil {
		socket, err := dir.socket()
		if err != nil {
			return nil, err
		}
		q := *p
		q.client = &url.URL{Scheme: "unix", Path: socket}
		q.advertise = q.client
		p = &q
	}
	chosen := p.client.Port() == "0" || p.peer != nil && p.peer.Port() == "0"
	for attempt := 1; ; attempt++ {
		q, err := p.withPorts()
		if err != nil {
			return nil, err
		}
		e, err := launch(ctx, q, dir)
		// A port that was free when it was chosen can be taken by the time it is used.
		if errors.Is(err, syscall.EADDRINUSE) && chosen && attempt < 3 {
			continue
		}
		return e, err
	}
}

// withPorts returns the plan with free ports in the place of zeros, and an error
// that names the address if one cannot be used.
func (p *plan) withPorts() (*plan, error) {
	q := *p
	q.members = slices.Clone(p.members)
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	for _, at := range []struct {
		what string
		url  **url.URL
	}{{"client", &q.client}, {"peer", &q.peer}} {
		if *at.url == nil || (*at.url).Scheme == "unix" {
			continue
		}
		l, err := net.Listen("tcp", (*at.url).Host)
		if err != nil {
			var oe *net.OpError
			if errors.As(err, &oe) {
				err = oe.Err
			}
			return nil, fmt.Errorf("%s address %s: %w", at.what, *at.url, err)
		}
		held = append(held, l)
		before := *at.url
		*at.url = withPort(before, l.Addr().(*net.TCPAddr).Port)
		if q.advertise == before {
			q.advertise = *at.url
		}
		for i := range q.members {
			if q.members[i].url == before {
				q.members[i].url = *at.url
			}
		}
	}
	return &q, nil
}

func withPort(u *url.URL, port int) *url.URL {
	v := *u
	v.Host = net.JoinHostPort(u.Hostname(), strconv.Itoa(port))
	return &v
}

// config is what etcd gets to see.
func (p *plan) config(dir string, h *halt, d *drain) *embed.Config {
	c := embed.NewConfig()
	c.Name = p.Name
	c.Dir = dir
	c.ListenClientUrls = []url.URL{*p.client}
	c.AdvertiseClientUrls = []url.URL{*p.advertise}
	c.ListenPeerUrls = nil
	if p.peer != nil {
		c.ListenPeerUrls = []url.URL{*p.peer}
	}
	var all []string
	for _, m := range p.members {
		all = append(all, m.name+"="+m.url.String())
		if m.name == p.Name {
			c.AdvertisePeerUrls = []url.URL{*m.url}
		}
	}
	c.InitialCluster = strings.Join(all, ",")
	c.InitialClusterToken = "tenure"
	if p.alone() {
		// The cluster's id is made of this and the peer URLs. Every new directory has an id
		// of its own, so that clients notice that another took its place.
		c.InitialClusterToken += "-" + rand.Text()
	}
	c.ClientTLSInfo, c.PeerTLSInfo = p.ClientTLS.info(), p.PeerTLS.info()
	c.TickMs, c.ElectionMs = uint(p.Tick.Milliseconds()), uint(p.Election.Milliseconds())
	c.SnapshotCount = p.SnapshotCount
	c.QuotaBackendBytes = p.Quota
	c.AutoCompactionMode = embed.CompactorModePeriodic
	c.AutoCompactionRetention = p.AutoCompaction.String()
	c.EnableGRPCGateway = false
	c.GRPCAdditionalServerOptions = d.options()
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(h.logger(p.Logger, p.Debug))
	return c
}

// started is what became of embed.StartEtcd.
type started struct {
	etcd *embed.Etcd
	err  error
}

func launch(ctx context.Context, p *plan, dir *dataDir) (*Engine, error) {
	e := &Engine{
		plan: p, dir: dir, halt: newHalt(), drain: newDrain(),
		errs: make(chan error, 1), stopped: make(chan struct{}),
	}
	done := make(chan started, 1)
	go func() {
		s := started{err: errors.New("etcd gave up")}
		// Deferred, because a halt ends this goroutine.
		defer func() {
			if r := recover(); r != nil {
				s.err = fmt.Errorf("etcd gave up: %v", r)
			}
			done <- s
		}()
		s.etcd, s.err = embed.StartEtcd(p.config(dir.path, e.halt, e.drain))
	}()

	select {
	case s := <-done:
		e.etcd = s.etcd
		if s.err != nil {
			return nil, e.blame(s.err)
		}
	case <-e.halt.halted:
		return nil, e.blame(nil)
	case <-ctx.Done():
		// It is asking peers that do not answer, a second for each. Its locks and
		// listeners are given back before the error is.
		err := e.late(ctx)
		timeout := time.NewTimer(p.StopTimeout)
		defer timeout.Stop()
		select {
		case s := <-done:
			if e.etcd = s.etcd; s.err == nil {
				err = errors.Join(err, e.shutdown(false))
			}
		case <-timeout.C:
			err = fmt.Errorf("%w; etcd has not come to an end since, and holds %s until this process ends", err, dir.path)
		}
		return nil, err
	}

	if err := e.becomeReady(ctx); err != nil {
		return nil, errors.Join(err, e.shutdown(false))
	}
	e.watcher.Go(e.watch)
	return e, nil
}

// becomeReady waits until the member has spoken to a quorum.
func (e *Engine) becomeReady(ctx context.Context) error {
	// A directory of another cluster would be served as what it is, whatever the
	// members given say: two engines where there should be one.
	if err := e.sameMembers(false); err != nil {
		return err
	}
	select {
	case <-e.etcd.Server.ReadyNotify():
		return e.sameMembers(true)
	case <-e.halt.halted:
		return e.blame(nil)
	case err := <-e.etcd.Err():
		return e.blame(err)
	case <-e.etcd.Server.StopNotify():
		return e.blame(nil)
	case <-ctx.Done():
		return e.late(ctx)
	}
}

// sameMembers compares the members that the data directory names with those
// given. Ports of a member alone may change. Before the log was replayed there may
// be fewer than there are; one too many is one too many already.
func (e *Engine) sameMembers(replayed bool) error {
	if !e.dir.used {
		return nil
	}
	var known, given []string
	for _, m := range e.etcd.Server.Cluster().Members() {
		known = append(known, m.PeerURLs...)
	}
	for _, m := range e.plan.members {
		given = append(given, m.url.String())
	}
	slices.Sort(known)
	slices.Sort(given)
	foreign := slices.ContainsFunc(known, func(url string) bool { return !slices.Contains(given, url) })
	if len(known) == 0 || len(known) == 1 && len(given) == 1 || slices.Equal(known, given) || !replayed && !foreign {
		return nil
	}
	return &ConfigError{Field: "members", Rule: fmt.Sprintf("data directory %s belongs to a cluster of %d (%s), not to one of %d (%s): give its members, or another directory",
		e.dir.path, len(known), strings.Join(known, ", "), len(given), strings.Join(given, ", "))}
}

// blame prefers what etcd wanted to end the process for: other errors follow
// from it.
func (e *Engine) blame(err error) error {
	select {
	case <-e.halt.halted:
		err = e.halt.err
	default:
	}
	if err == nil {
		err = errors.New("etcd stopped by itself: this member was removed from its cluster, or could not go on")
	}
	return fmt.Errorf("data directory %s: %w", e.dir.path, err)
}

// Endpoints returns the URLs at which this member serves clients, for etcd's client:
// unix:///path if no ClientURL was given.
func (e *Engine) Endpoints() []string { return []string{e.plan.client.String()} }

// PeerURL returns where this member listens for the others; "" if it is alone.
func (e *Engine) PeerURL() string {
	if e.plan.peer == nil {
		return ""
	}
	return e.plan.peer.String()
}

// Name returns the name of this member.
func (e *Engine) Name() string { return e.plan.Name }

// DataDir returns the directory in use.
func (e *Engine) DataDir() string { return e.dir.path }

// Notices returns what an operator should know about this way of running.
func (e *Engine) Notices() []string { return slices.Clone(e.plan.notices) }

// Err receives one error if the member fails by itself: it acknowledges nothing
// from then on, and the caller stops its work and calls Stop. The channel is
// closed after that, or by Stop.
func (e *Engine) Err() <-chan error { return e.errs }

func (e *Engine) watch() {
	defer close(e.errs)
	for {
		select {
		case <-e.stopped:
			return
		case <-e.halt.halted:
		case <-e.etcd.Server.StopNotify():
		case err, ok := <-e.etcd.Err():
			if ok && err == nil {
				continue
			}
			e.halt.set(err)
		}
		select {
		case <-e.stopped:
			return
		default:
		}
		// Clients are sent away at once: what they would wait for cannot come.
		e.drain.begin()
		e.errs <- fmt.Errorf("engine %s: %w", e.plan.Name, e.blame(nil))
		return
	}
}

// Stop ends the member and gives back its ports, its lock and, if it was
// temporary, its directory; a leader among several hands over first. Clients are
// told to go elsewhere. It returns within StopTimeout, with an error if etcd did
// not end by then; a second call returns what the first did.
func (e *Engine) Stop() error {
	e.stop.Do(func() {
		close(e.stopped)
		e.watcher.Wait()
		err := e.shutdown(true)
		if err == nil {
			err = e.dir.close()
		}
		if err != nil {
			e.stopErr = fmt.Errorf("engine %s: %w", e.plan.Name, err)
		}
	})
	return e.stopErr
}

// shutdown waits for etcd to end, but not for ever.
func (e *Engine) shutdown(ready bool) error {
	e.drain.begin()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !ready {
			// Close waits for listeners that begin when the member is ready, unless the
			// server was stopped before.
			e.etcd.Server.Stop()
		}
		e.etcd.Close()
	}()
	timeout := time.NewTimer(e.plan.StopTimeout)
	defer timeout.Stop()
	select {
	case <-done:
		return nil
	case <-timeout.C:
		return fmt.Errorf("etcd did not stop within %v and holds %s until this process ends", e.plan.StopTimeout, e.dir.path)
	}
}
