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

// ErrNotReady: the member did not serve in time.
var ErrNotReady = errors.New("not ready in time")

// Engine is a running member.
type Engine struct {
	plan    *plan
	dir     *dataDir
	etcd    *embed.Etcd
	fatal   *fatal
	drain   *drain
	errs    chan error
	stop    sync.Once
	stopErr error
	stopped chan struct{} // Stop has begun
	watcher sync.WaitGroup
}

// Start runs a member and returns when it serves clients. In a cluster that needs a quorum,
// so start its members at the same time. ctx bounds the start alone. The error is a
// *ConfigError if the settings cannot work, ErrNotReady if the member did not become ready.
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
	anyPort := p.client.Port() == "0" || p.peer != nil && p.peer.Port() == "0"
	for attempt := 1; ; attempt++ {
		q, err := p.withPorts()
		if err != nil {
			return nil, err
		}
		e, err := launch(ctx, q, dir)
		// Another process can take a free port between its choice and its use.
		if errors.Is(err, syscall.EADDRINUSE) && anyPort && attempt < 3 {
			continue
		}
		return e, err
	}
}

// withPorts returns the plan with free ports in place of zeros. The error has the address
// that cannot be used.
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

// config returns etcd's configuration.
func (p *plan) config(dir string, f *fatal, d *drain) *embed.Config {
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
		// The cluster's id is derived from the token and the peer URLs. With a random token
		// clients notice that a new directory is another cluster.
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
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(f.logger(p.Logger, p.Debug))
	return c
}

// started is the result of embed.StartEtcd.
type started struct {
	etcd *embed.Etcd
	err  error
}

func launch(ctx context.Context, p *plan, dir *dataDir) (*Engine, error) {
	e := &Engine{
		plan: p, dir: dir, fatal: newFatal(), drain: newDrain(),
		errs: make(chan error, 1), stopped: make(chan struct{}),
	}
	done := make(chan started, 1)
	go func() {
		s := started{err: errors.New("etcd gave up")}
		// Deferred, because a fatal error ends this goroutine.
		defer func() {
			if r := recover(); r != nil {
				s.err = fmt.Errorf("etcd gave up: %v", r)
			}
			done <- s
		}()
		s.etcd, s.err = embed.StartEtcd(p.config(dir.path, e.fatal, e.drain))
	}()

	select {
	case s := <-done:
		e.etcd = s.etcd
		if s.err != nil {
			return nil, e.cause(s.err)
		}
	case <-e.fatal.done:
		return nil, e.cause(nil)
	case <-ctx.Done():
		// etcd asks each peer for up to a second. Wait until it has released its locks and
		// listeners.
		err := e.notReady(ctx)
		timeout := time.NewTimer(p.StopTimeout)
		defer timeout.Stop()
		select {
		case s := <-done:
			if e.etcd = s.etcd; s.err == nil {
				err = errors.Join(err, e.shutdown(false))
			}
		case <-timeout.C:
			err = fmt.Errorf("%w; etcd has not ended, and holds %s until this process ends", err, dir.path)
		}
		return nil, err
	}

	if err := e.becomeReady(ctx); err != nil {
		return nil, errors.Join(err, e.shutdown(false))
	}
	e.watcher.Go(e.watch)
	return e, nil
}

// becomeReady waits until the member has reached a quorum.
func (e *Engine) becomeReady(ctx context.Context) error {
	// etcd would serve the directory of another cluster, whatever the given members are.
	if err := e.sameMembers(false); err != nil {
		return err
	}
	select {
	case <-e.etcd.Server.ReadyNotify():
		return e.sameMembers(true)
	case <-e.fatal.done:
		return e.cause(nil)
	case err := <-e.etcd.Err():
		return e.cause(err)
	case <-e.etcd.Server.StopNotify():
		return e.cause(nil)
	case <-ctx.Done():
		return e.notReady(ctx)
	}
}

// sameMembers compares the members in the data directory with the given ones. The ports of
// a member alone may change. Before the log is replayed, members may be missing; an
// unknown one is an error even then.
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
	return &ConfigError{Field: "members", Rule: fmt.Sprintf("data directory %s belongs to a cluster of %d (%s), not to one of %d (%s); set its members, or use another directory",
		e.dir.path, len(known), strings.Join(known, ", "), len(given), strings.Join(given, ", "))}
}

// cause prefers a fatal error of etcd to err, which may follow from it.
func (e *Engine) cause(err error) error {
	select {
	case <-e.fatal.done:
		err = e.fatal.err
	default:
	}
	if err == nil {
		err = errors.New("etcd stopped by itself: this member was removed from its cluster, or failed")
	}
	return fmt.Errorf("data directory %s: %w", e.dir.path, err)
}

// Endpoints returns the URLs for etcd's client: unix:///path without a ClientURL.
func (e *Engine) Endpoints() []string { return []string{e.plan.client.String()} }

// PeerURL returns where this member listens for other members; "" if it is alone.
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

// Notices returns warnings about the configuration for operators.
func (e *Engine) Notices() []string { return slices.Clone(e.plan.notices) }

// Err receives one error if the member fails: it acknowledges nothing from then on, and the
// caller should stop its work and call Stop. The channel is closed after that, or by Stop.
func (e *Engine) Err() <-chan error { return e.errs }

func (e *Engine) watch() {
	defer close(e.errs)
	for {
		select {
		case <-e.stopped:
			return
		case <-e.fatal.done:
		case <-e.etcd.Server.StopNotify():
		case err, ok := <-e.etcd.Err():
			if ok && err == nil {
				continue
			}
			e.fatal.set(err)
		}
		select {
		case <-e.stopped:
			return
		default:
		}
		e.drain.begin() // clients need not wait for answers that cannot come
		e.errs <- fmt.Errorf("engine %s: %w", e.plan.Name, e.cause(nil))
		return
	}
}

// Close ends the member and releases its ports and its lock; it removes a temporary
// directory. A leader in a cluster hands over first. Clients get "unavailable". It returns
// within StopTimeout, with an error if etcd has not ended by then. Further calls return the
// same result.
func (e *Engine) Close() error {
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

// shutdown waits for etcd to end, up to StopTimeout.
func (e *Engine) shutdown(ready bool) error {
	e.drain.begin()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !ready {
			// Otherwise Close would wait for listeners that start when the member is ready.
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
		return fmt.Errorf("etcd did not stop within %v, and holds %s until this process ends", e.plan.StopTimeout, e.dir.path)
	}
}
