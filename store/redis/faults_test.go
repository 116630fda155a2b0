package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/redis"
	"github.com/tenurehq/tenure/store/storetest"
)

// A leader whose client is cut off stops believing before the next one begins: both beliefs are
// read on one clock.
func TestNoOverlap(t *testing.T) {
	server := servertest.Redis(t)
	var ways [2]storetest.Way
	for i := range ways {
		p := enginetest.NewProxy(t, server.Addr())
		ways[i] = storetest.Way{Store: open(t, p.Addr()), Cut: p.Cut, Heal: p.Heal}
	}
	storetest.NoOverlap(t, 2*time.Second, ways, storetest.Rounds(t, 2))
}

// A server that is stopped, black-holed or killed for less than the TTL costs no term, and the
// watches go on by themselves: a group that was released meanwhile is seen.
func TestServerLost(t *testing.T) {
	server := servertest.Redis(t, servertest.Args("--appendonly", "yes", "--appendfsync", "always"))
	proxy := enginetest.NewProxy(t, server.Addr())
	s, other := open(t, proxy.Addr()), open(t, server.Addr())
	const ttl = 30 * time.Second
	term := storetest.Lead(t, storetest.Candidate(t, s, "a", ttl, "g"))
	session, err := other.Open(t.Context(), tenure.Candidate{ID: "b"}, 10*time.Minute, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	signal := func(sig syscall.Signal) func() {
		return func() {
			if err := syscall.Kill(server.PID(), sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, fault := range []struct {
		name         string
		strike, heal func()
	}{
		{"stopped", signal(syscall.SIGSTOP), signal(syscall.SIGCONT)},
		{"black-holed", proxy.Cut, proxy.Heal},
		{"reset", proxy.Refuse, proxy.Heal},
		{"killed", server.Kill, server.Start},
	} {
		t.Run(fault.name, func(t *testing.T) {
			fault.strike()
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if v, err := s.Read(ctx, "g"); err == nil {
				t.Errorf("read %+v", v)
			} else if took := time.Since(began); took > 10*time.Second {
				t.Errorf("a read with a deadline of 1 s failed after %v", took)
			}
			fault.heal()
			group := fault.name
			storetest.Eventually(t, func() error {
				v, err := other.Read(t.Context(), group)
				if err == nil && v.Version == 0 {
					_, err = other.Acquire(t.Context(), session.ID, v.Record)
				}
				return err
			})
			storetest.Eventually(t, func() error { return seen(t, s, group) })
			if err := term.Check(); err != nil {
				t.Errorf("the leader lost its term: %v", err)
			}
			if m, err := other.Meta(t.Context()); err != nil || m.Rewound {
				t.Errorf("%+v, %v", m, err)
			}
		})
	}
}

// seen waits until a watch shows that the group is led.
func seen(t *testing.T, s *redis.Store, group string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for u, err := range s.Watch(ctx, store.Scope{group}) {
		if err != nil {
			return err
		}
		if u.Kind == store.GroupChanged && u.View.Group == group && u.View.State == tenure.Led {
			return nil
		}
	}
	return errors.New("the watch ended")
}

// A commit whose reply was lost is not sent again. The second try would find the effect of the
// first and answer that a condition failed, which would be taken for a definite answer.
func TestCommitNotRetried(t *testing.T) {
	server := servertest.Redis(t)
	proxy := enginetest.NewProxy(t, server.Addr())
	d := redis.NewDriver(redis.Config{Addrs: []string{proxy.Addr()}})
	t.Cleanup(d.Close)
	_, err := d.Incarnation(t.Context()) // there is a connection, and Redis knows the script
	must(t, err)
	proxy.CutOneWay(enginetest.Down)
	type answer struct {
		kv.Result
		err error
	}
	done := make(chan answer, 1)
	go func() {
		r, err := d.Commit(t.Context(), kv.Txn{If: []kv.Cond{{Key: "record/g"}}, Then: []kv.Write{{Key: "record/g", Value: []byte("x")}}})
		done <- answer{r, err}
	}()
	storetest.Eventually(t, func() error { return raw(t, server).HGet(t.Context(), keys[0], "record/g").Err() })
	proxy.Break()
	proxy.Heal()
	if a := <-done; a.err == nil {
		t.Errorf("%+v", a.Result)
	}
}

// A watch that was cut off sees what changed meanwhile, and a watch without a server ends.
func TestWatchReconnects(t *testing.T) {
	server := servertest.Redis(t)
	proxy := enginetest.NewProxy(t, server.Addr())
	s, other := open(t, proxy.Addr()), open(t, server.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	began, ended := map[string]bool{}, error(nil)
	for u, err := range s.Watch(ctx, store.Scope{"*"}) {
		if ended = err; err != nil {
			break
		}
		if u.Kind == store.SessionBegan {
			began[u.Session.Candidate.ID] = true
		}
		switch {
		case u.Kind == store.Synced:
			proxy.Refuse()
			if _, err := other.Open(ctx, tenure.Candidate{ID: "a"}, time.Hour, store.OpenOptions{Scope: store.Scope{"*"}}); err != nil {
				t.Fatal(err)
			}
			proxy.Heal()
		case began["a"]:
			proxy.Cut()
		}
	}
	if !began["a"] || ended == nil || ctx.Err() != nil {
		t.Errorf("the watch saw %v and ended with %v", began, ended)
	}
}

// When Redis has lost data, by whatever accident, nothing is granted until the epoch is raised,
// and Meta says why.
func TestDataLost(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(*testing.T, *servertest.Server)
		says string // "": it depends on who comes first
	}{
		"flushed":   {func(t *testing.T, s *servertest.Server) { must(t, raw(t, s).FlushAll(t.Context()).Err()) }, ""},
		"restarted": {func(_ *testing.T, s *servertest.Server) { s.Restart() }, ""},
		"record deleted": {func(t *testing.T, s *servertest.Server) {
			must(t, raw(t, s).HDel(t.Context(), keys[0], "record/g").Err())
		}, `"g"`},
		"items deleted": {func(t *testing.T, s *servertest.Server) { must(t, raw(t, s).Del(t.Context(), keys[0]).Err()) }, "deleted"},
		"state deleted": {func(t *testing.T, s *servertest.Server) { must(t, raw(t, s).Del(t.Context(), keys[2]).Err()) }, "went back"},
	} {
		t.Run(name, func(t *testing.T) {
			server := servertest.Redis(t)
			s := open(t, server.Addr())
			term := storetest.Lead(t, storetest.Candidate(t, s, "a", 4*time.Second, "g"))
			before, err := s.Meta(t.Context())
			must(t, err)
			c.lose(t, server)
			select {
			case <-term.Context().Done():
			case <-time.After(30 * time.Second):
				t.Error("the leader leads on")
			}
			late := open(t, server.Addr())
			storetest.Eventually(t, func() error {
				m, err := late.Meta(t.Context())
				if err == nil && (!m.Rewound || m.Deployment != before.Deployment || !strings.Contains(m.Why, c.says)) {
					err = fmt.Errorf("%+v, want deployment %s, rewound, because of %q", m, before.Deployment, c.says)
				}
				return err
			})
			if _, err := late.Open(t.Context(), tenure.Candidate{ID: "b"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}}); !errors.Is(err, store.ErrRewound) {
				t.Errorf("a new candidate is told %v", err)
			}
			_ = term.Resign(t.Context())
			raiseEpoch(t, late)
			if next := storetest.Lead(t, storetest.Candidate(t, late, "b", 4*time.Second, "g")); next.Token() <= term.Token() {
				t.Errorf("token %d after token %d", next.Token(), term.Token())
			}
		})
	}
}

// After Redis lost everything, a process that knows nothing may come first and begin a new
// deployment. A process that knew the old one reports the loss and gives it back its name, which
// sinks know.
func TestNameRestored(t *testing.T) {
	server := servertest.Redis(t)
	old := open(t, server.Addr())
	before, err := old.Meta(t.Context())
	must(t, err)
	server.Restart()
	young := open(t, server.Addr())
	if m, err := young.Meta(t.Context()); err != nil || m.Rewound || m.Deployment == before.Deployment {
		t.Fatalf("who knows nothing: %+v, %v", m, err)
	}
	for range 2 { // and nobody takes it away again
		storetest.Eventually(t, func() error {
			_, err := old.Meta(t.Context())
			return err
		})
		if m, err := young.Meta(t.Context()); err != nil || !m.Rewound || m.Deployment != before.Deployment {
			t.Errorf("%+v, %v, want %s, rewound", m, err, before.Deployment)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Bad input is an error within seconds that names it. Nothing stays behind.
func TestBadInput(t *testing.T) {
	server := servertest.Redis(t)
	locked := servertest.Redis(t)
	acl := raw(t, locked)
	must(t, acl.ACLSetUser(t.Context(), "poor", "on", ">secret", "~other*", "&*", "+@all").Err())
	must(t, acl.ACLSetUser(t.Context(), "mute", "on", ">secret", "~*", "&other", "+@all").Err())
	must(t, acl.ACLSetUser(t.Context(), "able", "on", ">secret", "~{tenure}:*", "&{tenure}:*", "+eval", "+evalsha", "+info", "+ping", "+subscribe", "+unsubscribe",
		"+publish", "+time", "+hget", "+hmget", "+hset", "+hsetnx", "+hdel", "+hlen", "+hincrby", "+zadd", "+zrem", "+zcard", "+zrangebylex").Err())
	must(t, acl.ConfigSet(t.Context(), "requirepass", "secret").Err())
	replica := servertest.Replica(t, server.Addr())
	evicts := servertest.Redis(t, servertest.Args("--maxmemory-policy", "allkeys-lru"))
	cluster := servertest.Redis(t, servertest.Args("--cluster-enabled", "yes"))
	sentinel := servertest.Sentinels(t, 1, "mymaster", server.Addr())[0]
	newer := servertest.Redis(t)
	open(t, newer.Addr()).Close()
	must(t, raw(t, newer).HSet(t.Context(), keys[0], "meta", `1 1 {"format":99}`).Err())
	foreign := servertest.Redis(t)
	must(t, raw(t, foreign).Set(t.Context(), keys[1], "mine", 0).Err())
	stored := func() string {
		var all []string
		for _, s := range []*servertest.Server{server, evicts, newer, foreign} {
			names, err := raw(t, s).Keys(t.Context(), "*").Result()
			must(t, err)
			slices.Sort(names)
			all = append(all, fmt.Sprint(names, raw(t, s).HGetAll(t.Context(), keys[0]).Val()))
		}
		return strings.Join(all, "; ")
	}
	before := stored()
	at := func(s *servertest.Server) redis.Config { return redis.Config{Addrs: []string{s.Addr()}} }
	with := func(c redis.Config, f func(*redis.Config)) redis.Config { f(&c); return c }
	user := func(name, password string) redis.Config {
		return with(at(locked), func(c *redis.Config) { c.Username, c.Password = name, password })
	}
	for name, c := range map[string]struct {
		cfg  redis.Config
		says string
		is   error
	}{
		"no address":         {redis.Config{}, "addresses", store.ErrInvalid},
		"odd address":        {redis.Config{Addrs: []string{"a b"}}, "a b", store.ErrInvalid},
		"several addresses":  {redis.Config{Addrs: []string{"a:1", "b:1"}}, "name the master", store.ErrInvalid},
		"odd prefix":         {with(at(server), func(c *redis.Config) { c.Prefix = "a{b" }), "a{b", store.ErrInvalid},
		"negative database":  {with(at(server), func(c *redis.Config) { c.DB = -1 }), "-1", store.ErrInvalid},
		"nobody there":       {redis.Config{Addrs: []string{"127.0.0.1:1"}}, "127.0.0.1:1", nil},
		"no such database":   {with(at(server), func(c *redis.Config) { c.DB = 99 }), "DB index is out of range", nil},
		"no password":        {at(locked), "password", store.ErrUnauthenticated},
		"wrong password":     {user("", "guess"), "password", store.ErrUnauthenticated},
		"wrong user":         {user("nobody", "secret"), "user", store.ErrUnauthenticated},
		"no rights":          {user("poor", "secret"), "permission", store.ErrDenied},
		"no channel":         {user("mute", "secret"), "PUBLISH {tenure}:changes", store.ErrDenied},
		"replica":            {at(replica), "replica", nil},
		"evicting":           {at(evicts), "allkeys-lru", store.ErrInvalid},
		"cluster":            {at(cluster), "Redis Cluster is not supported", store.ErrInvalid},
		"too old":            {redis.Config{Addrs: []string{oldServer(t)}}, "5.0.14", store.ErrInvalid},
		"newer format":       {at(newer), "newer", store.ErrNewer},
		"key of others":      {at(foreign), "WRONGTYPE", nil},
		"unknown master":     {redis.Config{Addrs: []string{sentinel.Addr()}, Master: "other"}, "other", nil},
		"sentinel as server": {at(sentinel), sentinel.Addr(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			s, err := redis.Open(t.Context(), c.cfg)
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v: want %q, %v", err, c.says, c.is)
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "guess") {
				t.Errorf("the error has a password: %v", err)
			}
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
	s := openWith(t, user("able", "secret")) // the rights that the package comment names are enough
	if err := storetest.Lead(t, storetest.Candidate(t, s, "a", 10*time.Second, "g")).Resign(t.Context()); err != nil {
		t.Error(err)
	}
	if after := stored(); after != before {
		t.Errorf("before: %s; after: %s", before, after)
	}
}

// oldServer says that it is an old Redis.
func oldServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					const info = "redis_version:5.0.14\r\n"
					switch strings.ToLower(lines.Text()) {
					case "info":
						_, _ = fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(info), info)
					case "hello":
						_, _ = fmt.Fprint(conn, "-ERR unknown command\r\n")
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// A URL says everything that is needed, and an error about one has no password.
func TestParse(t *testing.T) {
	for url, want := range map[string]string{
		"redis://localhost":                               "[localhost:6379] 0 tls=false",
		"redis://u:p@10.0.0.1:7000/3?prefix=x":            "[10.0.0.1:7000] 3 u p prefix=x tls=false",
		"rediss://:p%40@[::1]":                            "[[::1]:6379] 0 p@ tls=true",
		"redis://a,b:1/?master=m&sentinel_password=q":     "[a:26379 b:1] 0 master=m q tls=false",
		"redis://[::1]:5?deployment=prod":                 "[[::1]:5] 0 deployment=prod tls=false",
		"http://localhost":                                "",
		"redis://":                                        "",
		"redis://u:hidden@h/x":                            "",
		"redis://u:hidden@h:1?color=hidden":               "",
		"redis://u:hidden%zz@h":                           "",
		"redis://u:hidden@a,b":                            "",
		"redis://u:hidden@h?prefix={":                     "",
		"redis://u@h":                                     "",
		"redis://u:hidden@h?master=m;sentinel_password=%": "",
	} {
		c, err := redis.Parse(url)
		if want == "" {
			if err == nil || !errors.Is(err, store.ErrInvalid) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("%s: %+v, %v", url, c, err)
			}
			continue
		}
		got := fmt.Sprint(c.Addrs, " ", c.DB)
		for _, part := range []struct{ name, value string }{{"", c.Username}, {"", c.Password}, {"prefix=", c.Prefix}, {"deployment=", c.Deployment}, {"master=", c.Master}, {"", c.SentinelPassword}} {
			if part.value != "" {
				got += " " + part.name + part.value
			}
		}
		if got += fmt.Sprint(" tls=", c.TLS != nil); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", url, got, err, want)
		}
	}
}
