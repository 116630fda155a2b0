package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// Config says where the service is and who is asking.
type Config struct {
	// URLs of the instances, such as "https://10.0.0.1:7600", in the order of
	// preference. Name them all, or a load balancer before them.
	URLs []string
	// TLS for https URLs: roots, and the client's certificate if that is its
	// identity.
	TLS *tls.Config
	// Bearer returns the caller's token. It is called for each call, so that an expired token
	// can be replaced, and must be quick. The token is sent over https and to loopback only.
	// Optional.
	Bearer func(context.Context) (string, error)
	// Heartbeat is how often a watch must send a line. Three heartbeats without a line end
	// it. From 100 ms to 15 s. Default 1 s, which suits a TTL of 4 s and more.
	Heartbeat time.Duration
}

const (
	// defaultCall bounds calls whose context has no deadline.
	defaultCall = 5 * time.Second
	// dial bounds connecting, besides the deadline of the call.
	dial             = 5 * time.Second
	defaultHeartbeat = time.Second
	minHeartbeat     = 100 * time.Millisecond
	maxHeartbeat     = 15 * time.Second
	// silence is how many heartbeats may be missed.
	silence = 3
	// connections to one instance at a time, besides keep-alives and watches.
	connections = 64
)

// ErrDenied: the service does not accept the credentials (the error is also a
// store.ErrUnauthenticated), or the caller lacks the right (store.ErrDenied). Nothing was
// done. It ends a campaign.
var ErrDenied = errors.New("refused by the service")

var errClosed = errors.New("remote: the store is closed")

// Store is a store.Store in the election service.
type Store struct {
	cfg        Config
	bases      []string // of the instances, with /v1
	caps       store.Caps
	deployment string
	calls      *http.Transport
	beats      *http.Transport
	streams    *http.Transport
	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	preferred  atomic.Int64 // the instance to ask first
}

var _ store.Store = (*Store)(nil)

// Open asks the service for its capabilities and its deployment. It fails within the
// deadline of the context (5 s if it has none) with the error of each instance.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = defaultHeartbeat
	}
	s := &Store{cfg: cfg}
	if err := s.validate(); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.calls, s.beats, s.streams = transport(cfg.TLS), transport(cfg.TLS), transport(cfg.TLS)
	s.calls.MaxConnsPerHost = connections
	welcome, err := call[wire.Welcome](ctx, s, wire.Caps, wire.Nothing{})
	if failed := (*CallError)(nil); errors.As(err, &failed) {
		err = failed.Err
	}
	if err == nil && (welcome.Deployment == "" || welcome.Batch < 1 || welcome.MaxTTL < 1) {
		err = fmt.Errorf("%s answered capabilities %+v; check that the URL is that of an election service", strings.Join(cfg.URLs, ","), welcome)
	}
	if err != nil {
		s.Close()
		return nil, wrap(wire.Open, err)
	}
	s.caps, s.deployment = welcome.Caps(), welcome.Deployment
	return s, nil
}

func (s *Store) validate() error {
	if len(s.cfg.URLs) == 0 {
		return &store.ArgumentError{Field: "urls", Rule: "at least one is needed"}
	}
	for _, raw := range s.cfg.URLs {
		u, err := url.Parse(raw)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "":
			return &store.ArgumentError{Field: "url", Value: withoutPassword(raw), Rule: "the address of a service, such as https://10.0.0.1:7600"}
		case u.User != nil:
			return &store.ArgumentError{Field: "url", Value: u.Redacted(), Rule: "no user and password: use Bearer or a certificate"}
		case u.Scheme == "http" && s.cfg.TLS != nil:
			return &store.ArgumentError{Field: "url", Value: raw, Rule: "must begin with https:// when TLS is set"}
		case u.Scheme == "http" && s.cfg.Bearer != nil && !loopback(u.Hostname()):
			return &store.ArgumentError{Field: "url", Value: raw, Rule: "must begin with https:// when Bearer is set: the token would be sent unencrypted"}
		}
		s.bases = append(s.bases, strings.TrimSuffix(strings.TrimRight(u.String(), "/"), "/v1")+"/v1")
	}
	if h := s.cfg.Heartbeat; h < minHeartbeat || h > maxHeartbeat {
		return &store.ArgumentError{Field: "heartbeat", Value: h, Rule: fmt.Sprintf("from %v to %v", minHeartbeat, maxHeartbeat)}
	}
	return nil
}

func withoutPassword(raw string) string {
	if i := strings.LastIndexByte(raw, '@'); i >= 0 {
		return "…" + raw[i:]
	}
	return raw
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// transport uses HTTP/1.1: a cancelled call closes its connection, and no call waits behind
// another on a dead connection.
func transport(config *tls.Config) *http.Transport {
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dial, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:     config.Clone(),
		TLSHandshakeTimeout: dial,
		MaxIdleConnsPerHost: connections,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
		Protocols:           new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// Close cancels all calls and closes the connections. Sessions live until they expire.
func (s *Store) Close() {
	s.cancel()
	for _, t := range []*http.Transport{s.calls, s.beats, s.streams} {
		t.CloseIdleConnections()
	}
}

// Caps implements store.Store: those of the service when it was opened.
func (s *Store) Caps() store.Caps { return s.caps }
