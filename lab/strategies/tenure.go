package strategies

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/node/enginecalls"
	"github.com/tenurehq/tenure/server/engines"
	"github.com/tenurehq/tenure/store"
)

// product is Tenure, unchanged.
type product struct {
	tenure.Elector
	close func(context.Context) error
}

func (p product) Close() { _ = p.close(context.Background()) }

func (p product) Campaign(ctx context.Context) (Term, error) {
	t, err := p.Elector.Campaign(ctx)
	if err != nil {
		return Term{}, err
	}
	return Term{Token: uint64(t.Token()), Believes: func() bool { return t.Check() == nil }, Stop: t.Resign}, nil
}

func candidate(c Config) tenure.Candidate {
	return tenure.Candidate{ID: fmt.Sprintf("node-%d", c.ID+1)}
}

func openTenure(ctx context.Context, c Config, n *sent) (Elector, error) {
	s, err := find(c.Strategy)
	if err != nil {
		return nil, err
	}
	url := s.engine + "://" + strings.Join(c.Links, ",")
	if s.engine == "postgres" {
		url = "postgres://tenure@" + c.Links[0] + "/postgres?sslmode=disable"
	}
	st, err := engines.Open(ctx, url, engines.Options{})
	if err != nil {
		return nil, err
	}
	counted := enginecalls.Count(st, func(what string) {
		if what == api.CallKeepAlive {
			n.beats.Add(1)
		} else {
			n.others.Add(1)
		}
	})
	node, err := lease.New(timed{counted, n}, lease.Config{
		Candidate: candidate(c), Scope: store.Scope{c.Group}, Timing: lease.Timing{TTL: c.TTL, Beat: c.Beat, Misses: c.Misses}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	e, err := node.Elector(c.Group)
	return product{e, node.Close}, err
}

// timed measures keep-alives.
type timed struct {
	store.Store
	n *sent
}

func (t timed) KeepAlive(ctx context.Context, id store.SessionID, groups ...string) (store.Beat, error) {
	asked := time.Now()
	b, err := t.Store.KeepAlive(ctx, id, groups...)
	if err == nil {
		t.n.renewed.Store(int64(time.Since(asked)))
	}
	return b, err
}

// counting counts the writes to a connection. Raft's heartbeats cannot be told from the rest.
type counting struct {
	net.Conn
	n *sent
}

func (c counting) Write(b []byte) (int, error) {
	c.n.beats.Add(1)
	return c.Conn.Write(b)
}

func openRaft(_ context.Context, c Config, n *sent) (Elector, error) {
	members, links := map[string]string{}, map[string]string{}
	for i, addr := range c.Peers {
		members[fmt.Sprintf("node-%d", i+1)] = addr
		links[addr] = c.Links[i]
	}
	node, err := raft.Open(raft.Config{
		Candidate: candidate(c), Group: c.Group, Peers: members, DataDir: c.Dir, Timing: raft.Timing{Heartbeat: c.TTL}, Log: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, links[address])
			if err != nil {
				return nil, err
			}
			return counting{conn, n}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	return product{node, node.Close}, nil
}
