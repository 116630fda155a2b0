package strategies

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"
)

// zkRecipe is ZooKeeper's recipe: each candidate makes an ephemeral node with a number, the lowest
// leads, and each watches the one before it. The number is a token.
type zkRecipe struct {
	Config
	sent *sent
	conn *zk.Conn

	mu   sync.Mutex
	lost chan struct{} // closed when the connection is lost, then replaced
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func openZooKeeper(ctx context.Context, c Config, n *sent) (Elector, error) {
	conn, events, err := zk.Connect(c.Links, c.TTL, zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	z := &zkRecipe{Config: c, sent: n, conn: conn, lost: make(chan struct{})}
	go func() {
		for e := range events {
			if e.State == zk.StateDisconnected || e.State == zk.StateExpired {
				z.mu.Lock()
				close(z.lost)
				z.lost = make(chan struct{})
				z.mu.Unlock()
			}
		}
	}()
	go func() { // the client pings by itself, three times in a session timeout
		for pause(ctx, c.TTL/3) {
			n.beats.Add(1)
		}
	}()
	return z, nil
}

func (z *zkRecipe) Close() {}

func (z *zkRecipe) call() *zk.Conn {
	z.sent.others.Add(1)
	return z.conn
}

func number(name string) uint64 {
	n, _ := strconv.ParseUint(name[strings.LastIndexByte(name, '-')+1:], 10, 64)
	return n
}

func (z *zkRecipe) Campaign(ctx context.Context) (Term, error) {
	z.mu.Lock()
	lost := z.lost
	z.mu.Unlock()
	dir := "/" + z.Group
	if _, err := z.call().Create(dir, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return Term{}, err
	}
	own, err := z.call().CreateProtectedEphemeralSequential(dir+"/n-", nil, zk.WorldACL(zk.PermAll))
	if err != nil {
		return Term{}, err
	}
	stop := func(context.Context) error {
		if err := z.call().Delete(own, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		return nil
	}
	for {
		names, _, err := z.call().Children(dir)
		if err != nil {
			return Term{}, errors.Join(err, stop(ctx))
		}
		slices.SortFunc(names, func(a, b string) int { return int(number(a)) - int(number(b)) })
		i := slices.Index(names, path.Base(own))
		if i < 0 {
			return Term{}, fmt.Errorf("the node %s is gone: the session has expired", own)
		}
		if i == 0 {
			var over atomic.Bool
			go func() {
				<-lost
				over.Store(true)
			}()
			select {
			case <-lost: // before the loop above could say so
				over.Store(true)
			default:
			}
			return Term{Token: number(own) + 1, Believes: func() bool { return !over.Load() }, Stop: stop}, nil
		}
		there, _, changed, err := z.call().ExistsW(dir + "/" + names[i-1])
		if err != nil {
			return Term{}, errors.Join(err, stop(ctx))
		}
		if !there {
			continue
		}
		select {
		case <-changed:
		case <-lost:
			return Term{}, errors.Join(errors.New("the connection was lost"), stop(ctx))
		case <-ctx.Done():
			return Term{}, ctx.Err()
		}
	}
}
