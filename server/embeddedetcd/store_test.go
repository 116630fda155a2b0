package embeddedetcd

import (
	"context"
	"crypto/tls"
	"log/slog"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

// secured is an engine that requires a certificate and a password, with a user for one
// prefix.
func secured(t *testing.T) (*Engine, certFiles) {
	t.Helper()
	certs := certificates(t)
	e := mustStart(t, fast(Config{DataDir: t.TempDir(), ClientURL: "127.0.0.1:0", ClientTLS: certs.tls}))
	root, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints(), TLS: certs.client(t, true), Logger: zap.NewNop(), DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	ctx := within(t, 20*time.Second)
	for _, step := range []func() error{
		func() error { _, err := root.UserAdd(ctx, "root", "over-all"); return err },
		func() error { _, err := root.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := root.RoleAdd(ctx, "elections"); return err },
		func() error {
			_, err := root.RoleGrantPermission(ctx, "elections", "/tenure/", clientv3.GetPrefixRangeEnd("/tenure/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := root.UserAdd(ctx, "tenure", "sesame"); return err },
		func() error { _, err := root.UserGrantRole(ctx, "tenure", "elections"); return err },
		func() error { _, err := root.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return e, certs
}

// The store works on the embedded engine with certificates and a user that can access only
// its own prefix: it elects and hands over.
func TestStoreSecured(t *testing.T) {
	e, certs := secured(t)
	open := func(id string) *lease.Elector {
		s, err := etcd.Open(within(t, 10*time.Second), etcd.Config{
			Endpoints: e.Endpoints(), TLS: certs.client(t, true), Username: "tenure", Password: "sesame", MinTTL: time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		n, err := lease.New(s, lease.Config{Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{"g"}, Timing: lease.Timing{TTL: 10 * time.Second}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = n.Close(ctx)
		})
		el, err := n.Elector("g")
		if err != nil {
			t.Fatal(err)
		}
		return el
	}
	a, b := open("a"), open("b")
	ctx := within(t, 20*time.Second)
	first, err := a.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	next := make(chan *tenure.Term, 1)
	go func() {
		term, err := b.Campaign(ctx)
		if err != nil {
			t.Error(err)
		}
		next <- term
	}()
	for {
		// Until b is a candidate.
		if err := first.TransferTo(ctx, "b"); err == nil {
			break
		} else if first.Check() != nil || ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	second := <-next
	if second == nil || second.Token() <= first.Token() {
		t.Fatalf("after token %d came %v", first.Token(), second)
	}
}

// A caller without access gets an error within seconds, with the endpoint and without the
// password.
func TestStoreRefused(t *testing.T) {
	e, certs := secured(t)
	stranger := certificates(t)
	endpoint := e.Endpoints()[0]
	for name, c := range map[string]struct {
		cfg  etcd.Config
		says string
	}{
		"wrong password":        {etcd.Config{TLS: certs.client(t, true), Username: "tenure", Password: "open-me"}, "authentication failed"},
		"unknown user":          {etcd.Config{TLS: certs.client(t, true), Username: "nobody", Password: "open-me"}, "authentication failed"},
		"no password":           {etcd.Config{TLS: certs.client(t, true)}, "permission denied"},
		"prefix of others":      {etcd.Config{TLS: certs.client(t, true), Username: "tenure", Password: "sesame", Prefix: "/others"}, "permission denied"},
		"unknown authority":     {etcd.Config{TLS: stranger.client(t, true), Username: "tenure", Password: "sesame"}, "certificate"},
		"no certificate":        {etcd.Config{TLS: certs.client(t, false), Username: "tenure", Password: "sesame"}, "certificate"},
		"certificate of others": {etcd.Config{TLS: &tls.Config{RootCAs: certs.ca, Certificates: stranger.client(t, true).Certificates}, Username: "tenure", Password: "sesame"}, "certificate"},
		"no TLS":                {etcd.Config{Endpoints: []string{strings.Replace(endpoint, "https", "http", 1)}}, "speaks TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.cfg.Endpoints == nil {
				c.cfg.Endpoints = e.Endpoints()
			}
			start := time.Now()
			s, err := etcd.Open(t.Context(), c.cfg)
			took := time.Since(start)
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			said := err.Error()
			if !strings.Contains(said, c.cfg.Endpoints[0]) || !strings.Contains(said, c.says) {
				t.Errorf("%q does not say %q and %q", said, c.cfg.Endpoints[0], c.says)
			}
			for _, secret := range []string{"sesame", "open-me"} {
				if strings.Contains(said, secret) {
					t.Errorf("%q tells the password", said)
				}
			}
			if took > 6*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}
