package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/storetest"
	"github.com/tenurehq/tenure/store/zookeeper"
)

func proxied(t *testing.T, servers []*servertest.ZooKeeperServer) ([]*enginetest.Proxy, []string) {
	t.Helper()
	var proxies []*enginetest.Proxy
	var all []string
	for _, s := range servers {
		p := enginetest.NewProxy(t, s.Addr())
		proxies, all = append(proxies, p), append(all, p.Addr())
	}
	return proxies, all
}

func pause(t *testing.T, s *servertest.ZooKeeperServer) (resume func()) {
	t.Helper()
	pid := s.PID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume = sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(resume)
	return resume
}

// srvr is what a server says of itself, "" if nothing.
func srvr(addr string) string {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = c.Write([]byte("srvr"))
	said, _ := io.ReadAll(c)
	return string(said)
}

// leaderFirst puts the leader of the ensemble first.
func leaderFirst(t *testing.T, servers []*servertest.ZooKeeperServer) []*servertest.ZooKeeperServer {
	t.Helper()
	all := append([]*servertest.ZooKeeperServer(nil), servers...)
	storetest.Eventually(t, func() error {
		for i, s := range all {
			if strings.Contains(srvr(s.Addr()), "Mode: leader") {
				all[0], all[i] = all[i], all[0]
				return nil
			}
		}
		return errors.New("no server says that it leads the ensemble")
	})
	return all
}

// raw is a client of ZooKeeper itself: an operator's.
func raw(t *testing.T, addr string) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A leader whose client is cut off stops believing before the next one begins: both beliefs
// are read on one clock.
func TestNoOverlap(t *testing.T) {
	t.Parallel()
	servers := servertest.ZooKeeper(t, 3)
	var ways [2]storetest.Way
	for i := range ways {
		proxies, all := proxied(t, servers)
		ways[i] = storetest.Way{Store: open(t, zookeeper.Config{Servers: all}), Cut: func() {
			for _, p := range proxies {
				p.Cut()
			}
		}, Heal: func() {
			for _, p := range proxies {
				p.Heal()
			}
		}}
	}
	storetest.NoOverlap(t, 2*time.Second, ways, storetest.Rounds(t, 2))
}

// One server of three that is stopped, black-holed or killed costs no term, also if it leads
// the ensemble.
func TestServerLost(t *testing.T) {
	t.Parallel()
	servers := leaderFirst(t, servertest.ZooKeeper(t, 3))
	proxies, all := proxied(t, servers)
	const ttl = 8 * time.Second
	var terms []*tenure.Term
	for i := range 6 {
		// Each knows one server alone for its first connection, so that every server has clients.
		mine := append(append([]string(nil), all[i%3:]...), all[:i%3]...)
		terms = append(terms, storetest.Lead(t, storetest.Candidate(t, open(t, zookeeper.Config{Servers: mine}), fmt.Sprintf("n%d", i), ttl, fmt.Sprintf("g%d", i))))
	}
	var resume func()
	storetest.Survive(t, terms, ttl+time.Second,
		storetest.Fault{Name: "one server black-holed", Strike: proxies[1].Cut, Heal: proxies[1].Heal},
		storetest.Fault{Name: "the leader stopped", Strike: func() { resume = pause(t, servers[0]) }, Heal: func() { resume() }},
		storetest.Fault{Name: "the leader killed", Strike: func() { servers = leaderFirst(t, servers); servers[0].Kill() }, Heal: func() { servers[0].Start() }})
}

// Without a quorum no keep-alive counts and reads fail with an error that names the servers.
// When the quorum is back everything goes on by itself.
func TestQuorumLost(t *testing.T) {
	t.Parallel()
	servers := leaderFirst(t, servertest.ZooKeeper(t, 3))
	const ttl = 3 * time.Second
	e := storetest.Candidate(t, open(t, zookeeper.Config{Servers: addrs(servers)}), "a", ttl, "g")
	var resume []func()
	storetest.QuorumLost(t, e, ttl, "", func() {
		for _, s := range servers[1:] {
			resume = append(resume, pause(t, s))
		}
	}, func() {
		storetest.Eventually(t, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := e.Leader(ctx)
			if err == nil || !strings.Contains(err.Error(), servers[0].Addr()) {
				return fmt.Errorf("the error does not name the servers: %w", err)
			}
			return nil
		})
		for _, r := range resume {
			r()
		}
	})
}

// A client of a server that is behind reads what another client was told.
func TestServerBehind(t *testing.T) {
	t.Parallel()
	servers := leaderFirst(t, servertest.ZooKeeper(t, 3))
	d, behind := driver(t, servers[0].Addr()), driver(t, servers[2].Addr())
	for round := range 20 {
		if _, err := behind.Commit(room(t), kv.Txn{}); err != nil {
			t.Fatal(err)
		}
		resume := pause(t, servers[2])
		for range 20 {
			if _, err := d.Commit(room(t), kv.Txn{Then: []kv.Write{{Key: "record/a", Value: fmt.Append(nil, round)}}}); err != nil {
				t.Fatal(err)
			}
		}
		read := make(chan kv.Result, 1)
		go func() {
			r, err := behind.Commit(room(t), kv.Txn{Read: []string{"record/a"}})
			if err != nil {
				t.Error(err)
			}
			read <- r
		}()
		time.Sleep(10 * time.Millisecond) // the request is on its way
		resume()
		if r := <-read; len(r.Items) == 1 && string(r.Items[0].Value) != fmt.Sprint(round) {
			t.Errorf("round %d: read %s", round, r.Items[0].Value)
		}
	}
}

// An ensemble that was restored from an old data directory is noticed, although its
// index is higher than before, and although a client that knows nothing was there first.
// A restart of the ensemble without loss is none.
func TestRestored(t *testing.T) {
	t.Parallel()
	servers := servertest.ZooKeeper(t, 3)
	kill := func() {
		for _, s := range servers {
			s.Kill()
		}
	}
	proxies, through := proxied(t, servers)
	s := open(t, zookeeper.Config{Servers: through})
	session, err := s.Open(room(t), tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	kill()
	var restore []func()
	for _, s := range servers {
		restore = append(restore, s.Backup())
	}
	servertest.StartZooKeeper(t, servers)
	var held store.Record
	storetest.Eventually(t, func() error {
		v, err := s.Read(room(t), "g")
		if err != nil {
			return err
		}
		records, err := s.Acquire(room(t), session.ID, v.Record)
		if err == nil {
			held = records[0]
		}
		return err
	})
	if m, err := s.Meta(room(t)); err != nil || m.Rewound {
		t.Fatalf("after a restart: %+v, %v", m, err)
	}
	before, err := s.Meta(room(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range proxies {
		p.Refuse()
	}
	kill()
	for _, r := range restore {
		r()
	}
	servertest.StartZooKeeper(t, servers)
	young := open(t, zookeeper.Config{Servers: addrs(servers)})
	for index := uint64(0); index <= before.Index; {
		m, err := young.Meta(room(t))
		if err != nil || m.Rewound {
			t.Fatalf("a client that knows nothing: %+v, %v", m, err)
		}
		index = m.Index
	}
	for _, p := range proxies {
		p.Heal()
	}
	storetest.Eventually(t, func() error {
		_, err := s.KeepAlive(room(t), session.ID)
		if err == nil {
			t.Fatal("the session is kept alive")
		}
		if errors.Is(err, store.ErrRewound) {
			return nil
		}
		return err
	})
	if m, err := young.Meta(room(t)); err != nil || !m.Rewound {
		t.Errorf("the client that knew nothing: %+v, %v", m, err)
	}
	if _, err := young.Open(room(t), tenure.Candidate{ID: "b"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}}); !errors.Is(err, store.ErrRewound) {
		t.Errorf("a new candidate is told: %v", err)
	}
	if _, err := young.RaiseEpoch(room(t), 1); err != nil {
		t.Fatal(err)
	}
	if next := storetest.Lead(t, storetest.Candidate(t, s, "c", 5*time.Second, "g")); next.Token() <= held.Token {
		t.Errorf("token %d after %d", next.Token(), held.Token)
	}
}

// deleteAll deletes a node and what is below it.
func deleteAll(t *testing.T, c *zk.Conn, path string) {
	t.Helper()
	names, _, err := c.Children(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		deleteAll(t, c, path+"/"+name)
	}
	if err := c.Delete(path, -1); err != nil {
		t.Fatal(err)
	}
}

// A path that somebody deleted is noticed, by clients that run meanwhile, as lost data.
func TestDeleted(t *testing.T) {
	t.Parallel()
	server := servertest.ZooKeeper(t, 1)[0]
	s := open(t, zookeeper.Config{Servers: []string{server.Addr()}, Path: "/some/where"})
	before, err := s.Meta(room(t))
	if err != nil {
		t.Fatal(err)
	}
	deleteAll(t, raw(t, server.Addr()), "/some")
	m, err := s.Meta(room(t))
	if err != nil || !m.Rewound || m.Deployment != before.Deployment {
		t.Errorf("%+v, %v, want %s, rewound", m, err, before.Deployment)
	}
}

// A connection that is lost leaves the outcome of a write unknown and says so. The next call
// uses another connection, and a watch goes on without a gap, unless it missed too much.
func TestConnectionLost(t *testing.T) {
	t.Parallel()
	server := servertest.ZooKeeper(t, 1)[0]
	proxy := enginetest.NewProxy(t, server.Addr())
	d, other := driver(t, proxy.Addr()), driver(t, server.Addr())
	put := func(d *zookeeper.Driver, key string) error {
		_, err := d.Commit(room(t), kv.Txn{Then: []kv.Write{{Key: key, Value: []byte("x")}}})
		return err
	}
	changes := make(chan kv.Change, 1<<12)
	var hold sync.Mutex
	go func() {
		for c, err := range d.Watch(t.Context(), 0, "record/") {
			hold.Lock()   // it only waits
			hold.Unlock() //nolint:gocritic,staticcheck // see above
			if err != nil {
				close(changes)
				return
			}
			changes <- c
		}
	}()
	next := func() kv.Change {
		select {
		case c, ok := <-changes:
			if !ok {
				t.Fatal("the watch ended")
			}
			return c
		case <-time.After(30 * time.Second):
			t.Fatal("the watch is silent")
		}
		return kv.Change{}
	}
	if c := next(); c != (kv.Change{}) {
		t.Fatalf("the watch begins with %+v", c)
	}
	if err := put(d, "record/a"); err != nil {
		t.Fatal(err)
	}
	if c := next(); c.Key != "record/a" {
		t.Fatalf("%+v", c)
	}

	proxy.Delay(enginetest.Down, 2*time.Second)
	failed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err := d.Commit(ctx, kv.Txn{Then: []kv.Write{{Key: "record/a", Value: []byte("y")}}})
		failed <- err
	}()
	storetest.Eventually(t, func() error {
		r, err := other.Commit(room(t), kv.Txn{Read: []string{"record/a"}})
		if err != nil || string(r.Items[0].Value) != "y" {
			return fmt.Errorf("the write did not arrive: %+v, %w", r, err)
		}
		return nil
	})
	proxy.Refuse()
	err := <-failed
	if !errors.Is(err, zookeeper.ErrConnectionLost) || errors.Is(err, zookeeper.ErrSessionLost) || store.Definite(err) {
		t.Errorf("a write whose connection broke: %v", err)
	}
	if err := put(other, "record/b"); err != nil {
		t.Fatal(err)
	}
	proxy.Heal()
	for _, want := range []string{"record/a", "record/b"} {
		if c := next(); c.Key != want {
			t.Errorf("after the connection was lost the watch tells %+v, want %s", c, want)
		}
	}
	if err := put(d, "record/c"); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if c := next(); c.Key != "record/c" {
		t.Fatalf("%+v", c)
	}

	hold.Lock()     // the watch is not read, which is like being away, but may last
	for range 600 { // more than are kept
		if err := put(other, "record/d"); err != nil {
			t.Fatal(err)
		}
	}
	hold.Unlock()
	for c := next(); c != (kv.Change{}); c = next() {
		if c.Key != "record/d" {
			t.Fatalf("%+v", c)
		}
	}
	names, _, err := raw(t, server.Addr()).Children("/tenure/.changes")
	if err != nil || len(names) > 600 {
		t.Errorf("%d changes are kept, %v", len(names), err)
	}
}

// A server that does not answer a call is given up when the call ends, not only when the
// session times out.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	proxy := enginetest.NewProxy(t, servertest.ZooKeeper(t, 1)[0].Addr())
	d := driver(t, proxy.Addr())
	if _, err := d.Commit(room(t), kv.Txn{}); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if r, err := d.Commit(ctx, kv.Txn{}); err == nil {
		t.Fatalf("%+v", r)
	}
	if d.Connected() {
		t.Error("the driver still uses a server that did not answer")
	}
	proxy.Heal()
	if _, err := d.Commit(room(t), kv.Txn{}); err != nil {
		t.Errorf("the server answers again: %v", err)
	}
}

// Bad configurations are errors within seconds that name what is wrong.
func TestBadInput(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg  zookeeper.Config
		says string
	}{
		"no servers":      {zookeeper.Config{}, "servers"},
		"odd server":      {zookeeper.Config{Servers: []string{"a b"}}, "a b"},
		"nobody there":    {zookeeper.Config{Servers: []string{"127.0.0.1:1"}}, "127.0.0.1:1"},
		"relative path":   {zookeeper.Config{Servers: []string{"127.0.0.1:1"}, Path: "x"}, "path"},
		"empty part":      {zookeeper.Config{Servers: []string{"127.0.0.1:1"}, Path: "/a//b"}, "/a//b"},
		"own path":        {zookeeper.Config{Servers: []string{"127.0.0.1:1"}, Path: "/zookeeper/x"}, "/zookeeper/x"},
		"half a password": {zookeeper.Config{Servers: []string{"127.0.0.1:1"}, User: "u"}, "password"},
		"odd min ttl":     {zookeeper.Config{Servers: []string{"127.0.0.1:1"}, MinTTL: time.Millisecond}, "min ttl"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			s, err := zookeeper.Open(t.Context(), c.cfg)
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// With a user only that user can read and write. Another one, a wrong password and a missing
// right are permanent errors, and leave nothing behind.
func TestDigest(t *testing.T) {
	t.Parallel()
	server := servertest.ZooKeeper(t, 1)[0]
	cfg := zookeeper.Config{Servers: []string{server.Addr()}, Path: "/a/b", User: "u", Password: "secret"}
	s := open(t, cfg)
	if _, err := s.Open(room(t), tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}}); err != nil {
		t.Fatal(err)
	}
	anybody := raw(t, server.Addr())
	for _, path := range []string{"/a/b/meta", "/a/b/.index"} {
		if _, _, err := anybody.Get(path); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("anybody reads %s: %v", path, err)
		}
	}
	if _, err := anybody.Create("/closed", nil, zk.FlagPersistent, zk.DigestACL(zk.PermAll, "v", "other")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]zookeeper.Config{
		"nobody":         {Path: "/a/b"},
		"wrong password": {Path: "/a/b", User: "u", Password: "guess"},
		"missing right":  {Path: "/closed/x/y", User: "u", Password: "secret"},
	} {
		c.Servers = cfg.Servers
		start := time.Now()
		s, err := zookeeper.Open(room(t), c)
		if err == nil {
			s.Close()
			t.Fatalf("%s: opened", name)
		}
		if !errors.Is(err, store.ErrDenied) || !store.Permanent(err) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "guess") {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	if ok, _, err := anybody.Exists("/closed/x"); ok || err != nil {
		t.Errorf("something was left behind: %v, %v", ok, err)
	}
}

// What a newer program wrote is refused, and not changed.
func TestNewerFormat(t *testing.T) {
	t.Parallel()
	server := servertest.ZooKeeper(t, 1)[0]
	cfg := zookeeper.Config{Servers: []string{server.Addr()}}
	open(t, cfg).Close()
	operator := raw(t, server.Addr())
	const newer = `{"format":99}`
	if _, err := operator.Set("/tenure/meta", []byte(newer), -1); err != nil {
		t.Fatal(err)
	}
	_, err := zookeeper.Open(room(t), cfg)
	if !errors.Is(err, store.ErrNewer) || !strings.Contains(err.Error(), "/tenure/meta") {
		t.Errorf("%v", err)
	}
	if data, _, err := operator.Get("/tenure/meta"); err != nil || string(data) != newer {
		t.Errorf("%s, %v", data, err)
	}
}

// A URL names servers, path, user and password. A password is in no error.
func TestParse(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"zookeeper://a":                       "[a:2181] /tenure",
		"zookeeper://a,b:2182,[::1]:2183/x/y": "[a:2181 b:2182 [::1]:2183] /x/y",
		"zookeeper://u:p%40ss@a:1/x":          "[a:1] /x u p@ss",
		"zookeeper://":                        "server",
		"zookeeper://a,/x":                    "server",
		"etcd://a":                            "zookeeper://",
		"zookeeper://u:secret%@a":             "percent-encoded",
		"zookeeper://a?x":                     "server",
		"zookeeper://secret@a":                "password",
		"zookeeper://u:secret@a:1/x?y":        "must be",
		"zookeeper://u:secret@a:1//x":         "path",
		"zookeeper://u:sec/ret@a:1/x":         "percent-encoded",
	} {
		c, err := zookeeper.Parse(url)
		got := strings.TrimSpace(fmt.Sprintf("%v %s %s %s", c.Servers, c.Path, c.User, c.Password))
		if err != nil {
			if got = err.Error(); strings.Contains(got, "secret") || !errors.Is(err, store.ErrInvalid) {
				t.Errorf("%s: %v", url, err)
			}
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q does not say %q", url, got, want)
			}
		} else if got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
}
