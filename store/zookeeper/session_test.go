package zookeeper_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/zookeeper"
)

// expirer passes requests on, but answers some by itself: the session has expired.
type expirer struct {
	net.Listener
	target  string
	op      uint32       // which requests
	expire  atomic.Int64 // how many
	expired atomic.Int64
}

func (e *expirer) serve() {
	for {
		client, err := e.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", e.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		go func() {
			_, _ = io.Copy(client, server)
			_ = client.Close()
		}()
		go func() {
			e.requests(client, server)
			_ = server.Close()
		}()
	}
}

func (e *expirer) requests(client, server net.Conn) {
	for first := true; ; first = false {
		head := make([]byte, 4)
		if _, err := io.ReadFull(client, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(client, body); err != nil {
			return
		}
		const sessionExpired = -112
		if !first && binary.BigEndian.Uint32(body[4:]) == e.op && e.expire.Add(-1) >= 0 {
			e.expired.Add(1)
			reply := binary.BigEndian.AppendUint32(nil, 16)
			reply = append(reply, body[:4]...)
			reply = binary.BigEndian.AppendUint64(reply, 0)
			code := int32(sessionExpired)
			if _, err := client.Write(binary.BigEndian.AppendUint32(reply, uint32(code))); err != nil {
				return
			}
			continue
		}
		if _, err := server.Write(append(head, body...)); err != nil {
			return
		}
	}
}

func newExpirer(t *testing.T, op uint32) *expirer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	e := &expirer{Listener: listener, target: servertest.ZooKeeper(t, 1)[0].Addr(), op: op}
	go e.serve()
	return e
}

// ZooKeeper's numbers of requests.
const opChildren, opMulti = 12, 14

// A session that ZooKeeper has ended costs no call: the write had no effect and is made in a
// new session.
func TestSessionLost(t *testing.T) {
	t.Parallel()
	e := newExpirer(t, opMulti)
	d := driver(t, e.Addr().String())
	version := uint64(0)
	for i := range 3 {
		e.expire.Store(int64(i))
		r, err := d.Commit(room(t), kv.Txn{If: []kv.Cond{{Key: "record/a", Version: version}}, Then: []kv.Write{{Key: "record/a", Value: []byte("x")}}})
		if err != nil || !r.OK {
			t.Fatalf("with %d sessions lost: %+v, %v", i, r, err)
		}
		version = r.Versions[0]
	}
	if n := e.expired.Load(); n != 3 {
		t.Errorf("%d sessions were lost, want 3", n)
	}
}

// It ends no watch either.
func TestWatchSessionLost(t *testing.T) {
	t.Parallel()
	e := newExpirer(t, opChildren)
	d := driver(t, e.Addr().String())
	e.expire.Store(2)
	for c, err := range d.Watch(t.Context(), 0, "record/") {
		if err != nil || c != (kv.Change{}) || e.expired.Load() != 2 {
			t.Errorf("after %d lost sessions the watch begins with %+v, %v", e.expired.Load(), c, err)
		}
		break
	}
}

// With TLS the driver talks to a server that only speaks TLS, and refuses one whose certificate
// it does not trust.
func TestTLS(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(nil) // it has a certificate
	t.Cleanup(web.Close)
	secure, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = secure.Close() })
	go (&expirer{Listener: secure, target: servertest.ZooKeeper(t, 1)[0].Addr()}).serve()
	trusted := x509.NewCertPool()
	trusted.AddCert(web.Certificate())
	cfg := zookeeper.Config{Servers: []string{secure.Addr().String()}, TLS: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}
	if _, err := open(t, cfg).Meta(room(t)); err != nil {
		t.Error(err)
	}
	cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	var unknown x509.UnknownAuthorityError
	if _, err := zookeeper.Open(t.Context(), cfg); !errors.As(err, &unknown) {
		t.Errorf("an unknown certificate: %v", err)
	}
}
