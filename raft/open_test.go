package raft

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/raft/internal/wire"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t, pool: x509.NewCertPool()}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true}, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, err = x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

// config is that of a node whose certificate a signed, and that trusts a.
func (a *authority) config(name string, ends time.Time) *tls.Config {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: ends,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}}, RootCAs: a.pool}
}

// Peers know each other by their certificates: with them they elect; one of
// another authority takes no part, and is told why.
func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	later := time.Now().Add(time.Hour)
	f := newFleet(t, func(c *Config) {
		c.TLS = ours.config(c.Candidate.ID, later)
		if c.Candidate.ID == "c" {
			c.TLS = theirs.config("c", later)
		}
	}, "a", "b", "c")
	f.start("a", "b", "c")
	term := f.win("a")
	ctx, cancel := within(patience)
	defer cancel()
	if l, err := f.nodes["b"].Leader(ctx); err != nil || l.Token != term.Token() {
		t.Errorf("b is told %+v, %v", l, err)
	}
	_, err := f.nodes["c"].Leader(ctx)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "x509: certificate signed by unknown authority") {
		t.Errorf("c, of another authority: %v", err)
	}
	// Half a stranger: it trusts us, but we have no reason to trust it.
	cfg := theirs.config("x", later)
	cfg.RootCAs = ours.pool
	conn, err := tls.Dial("tcp", f.peers["a"], cfg)
	if err == nil {
		_ = wire.WriteFrame(conn, map[string]any{"version": 1, "for": "call", "group": "g", "from": "x", "to": "a"})
		err = wire.ReadFrame(conn, &struct{}{}, wire.MaxCall)
		_ = conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a client without a certificate of ours: %v", err)
	}
}

// What cannot work is said at once, with the path or the address, and leaves
// nothing behind: the next try with the cause removed succeeds.
func TestOpenFails(t *testing.T) {
	other := newAuthority(t, "other")
	ours := newAuthority(t, "ours")
	later := time.Now().Add(time.Hour)
	strange := ours.config("a", later)
	strange.RootCAs = other.pool
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	junk := t.TempDir()
	if err := os.WriteFile(filepath.Join(junk, boltFile), make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	torn, odd := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(torn, boltFile), make([]byte, 8<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(odd, boltFile), 0o700); err != nil {
		t.Fatal(err)
	}
	holed := filepath.Join(t.TempDir(), "holed")
	hole := newFleet(t, func(c *Config) { c.DataDir = holed }, "a")
	hole.start("a")
	hole.win("a")
	hole.stop("a")
	db, err := raftboltdb.NewBoltStore(filepath.Join(holed, boltFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.DeleteRange(2, 2), db.Close()); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()

	f := newFleet(t, nil, "a", "b", "c")
	before := runtime.NumGoroutine()
	for name, tt := range map[string]struct {
		spoil func(*Config)
		want  string
	}{
		"directory is a file":      {func(c *Config) { c.DataDir = file }, file},
		"directory cannot be made": {func(c *Config) { c.DataDir = filepath.Join(file, "x") }, file},
		"log is junk":              {func(c *Config) { c.DataDir = junk }, filepath.Join(junk, boltFile)},
		"log is torn":              {func(c *Config) { c.DataDir = torn }, filepath.Join(torn, boltFile) + " is torn"},
		"log is a directory":       {func(c *Config) { c.DataDir = odd }, filepath.Join(odd, boltFile)},
		"log has a hole":           {func(c *Config) { c.DataDir = holed }, holed + " cannot be read"},
		"address in use":           {func(c *Config) { c.Listen = busy.Addr().String() }, busy.Addr().String()},
		"address of others":        {func(c *Config) { c.Listen = "192.0.2.1:1" }, "192.0.2.1:1"},
		"no certificate":           {func(c *Config) { c.TLS = &tls.Config{RootCAs: ours.pool} }, "a certificate must be given"},
		"no authority":             {func(c *Config) { c.TLS = ours.config("a", later); c.TLS.RootCAs = nil }, "RootCAs"},
		"certificate of others":    {func(c *Config) { c.TLS = strange }, `peers would refuse the certificate of "a"`},
		"certificate has expired":  {func(c *Config) { c.TLS = ours.config("a", time.Now().Add(-time.Minute)) }, "expired"},
		"configuration":            {func(c *Config) { c.Group = "" }, "group"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := f.config("a")
			tt.spoil(&cfg)
			n, err := Open(cfg)
			if err == nil {
				_ = n.Close(context.Background())
				t.Fatal("it opened")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q does not mention %q", err, tt.want)
			}
		})
	}
	eventually(t, "nothing is left running", func() bool { return runtime.NumGoroutine() <= before })
	f.start("a")
	f.stop("a")
}

// A node whose peers cannot be reached runs, and says within seconds that it
// knows nothing, and whom it could not reach.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, "a", "b", "c")
	f.start("a")
	start := time.Now()
	l, err := f.nodes["a"].Leader(t.Context())
	if !errors.Is(err, ErrUnavailable) || l.State != tenure.Unknown {
		t.Errorf("alone of three: %v, %v", l.State, err)
	}
	if err != nil && !strings.Contains(err.Error(), f.peers["b"]) && !strings.Contains(err.Error(), f.peers["c"]) {
		t.Errorf("%q names neither %s nor %s", err, f.peers["b"], f.peers["c"])
	}
	if took := time.Since(start); took > calm().Resolve().askBound()+5*time.Second {
		t.Errorf("it said so after %v", took)
	}
}

// A data directory has one owner: a second process is refused after a bounded
// wait, and another node or group at once.
func TestDataDir(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, "a", "b", "c")
	f.start("a")
	cfg := f.config("a")
	cfg.Listen = "127.0.0.1:0"
	start := time.Now()
	_, err := Open(cfg)
	if !errors.Is(err, ErrDataInUse) || !strings.Contains(err.Error(), cfg.DataDir) {
		t.Errorf("in use: %v", err)
	}
	if took := time.Since(start); took > inUseBound+5*time.Second {
		t.Errorf("refused after %v", took)
	}
	f.stop("a")
	other := f.config("b")
	other.DataDir = cfg.DataDir
	if _, err := Open(other); err == nil || !strings.Contains(err.Error(), `belongs to node "a" of group "g"`) {
		t.Errorf("of another node: %v", err)
	}
	other = f.config("a")
	other.Group = "h"
	if _, err := Open(other); err == nil || !strings.Contains(err.Error(), `belongs to node "a" of group "g"`) {
		t.Errorf("of another group: %v", err)
	}
}

// A node that was first started with other peers is of another cluster, and told
// so when it asks.
func TestOtherCluster(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, "a", "b", "c")
	f.start("a")
	other := f.config("b")
	other.Peers = map[string]string{"a": f.peers["a"], "b": f.peers["b"], "x": "127.0.0.1:1"}
	n, err := Open(other)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := within(patience)
	defer cancel()
	defer func() { _ = n.Close(ctx) }()
	if _, err := n.call(ctx, "a", f.peers["a"], request{Op: opStanding}); err == nil || !strings.Contains(err.Error(), "two clusters") {
		t.Errorf("a node of another cluster: %v", err)
	}
}

// Close leaves no goroutine behind, on a leader, a follower and a node that
// never had company; a second Close says the same, and everything else that it is
// closed.
func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	f := newFleet(t, nil, "a", "b", "c")
	wires := runtime.NumGoroutine() - before
	f.start("a", "b", "c")
	term := f.win("a")
	waiting := make(chan error, 1)
	b := f.nodes["b"]
	go func() {
		_, err := b.Campaign(context.Background())
		waiting <- err
	}()
	eventually(t, "b campaigns", func() bool { return f.nodes["a"].first() == "b" })
	ctx, cancel := within(patience)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := comes(t, "the campaign returns", waiting); !errors.Is(err, ErrClosed) {
		t.Errorf("the campaign of a closed node: %v", err)
	}
	if _, err := b.Campaign(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("a campaign after Close: %v", err)
	}
	if l, err := b.Leader(ctx); !errors.Is(err, ErrClosed) || l.State != tenure.Unknown {
		t.Errorf("Leader after Close: %v, %v", l, err)
	}
	if err := b.Close(ctx); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	delete(f.nodes, "b")

	// Work that does not return is named, and does not keep the node.
	short, cancelShort := within(200 * time.Millisecond)
	defer cancelShort()
	if err := f.nodes["a"].Close(short); err == nil || !strings.Contains(err.Error(), "has not returned") {
		t.Errorf("closing with work that hangs: %v", err)
	}
	if term.Check() == nil {
		t.Error("the term outlives its node")
	}
	delete(f.nodes, "a")
	f.stop("c")
	stacks := func() string {
		buf := make([]byte, 1<<20)
		return string(buf[:runtime.Stack(buf, true)])
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		left := stacks()
		if !strings.Contains(left, "hashicorp/raft") && !strings.Contains(left, "raft.(*Node)") && !strings.Contains(left, "wire.(*Port)") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind (of %d, the wires are %d):\n%s", runtime.NumGoroutine(), wires, left)
		}
	}
}
