package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure/internal/enginetest"
)

// lockEngine is the engine of the lock.
type lockEngine interface {
	Addr() string
	Kill()
	Start()
}

// etcdEngine is one member.
type etcdEngine struct{ *enginetest.Engine }

func (e etcdEngine) Addr() string { return e.Members[0].Addr() }
func (e etcdEngine) Kill()        { e.Members[0].Kill() }

// wrapper is a program that runs a command under a lock.
type wrapper struct {
	name    string
	obtain  func(t *testing.T) (string, error)
	engine  func(t *testing.T, path string) lockEngine
	command func(path, addr string) []string // the arguments before the command
	revoke  func(ctx context.Context, addr string) error
}

const group = "billing"

func wrappers(r *row) []wrapper {
	onEtcd := func(t *testing.T, _ string) lockEngine { return etcdEngine{enginetest.Cluster(t, 1)} }
	r.used("etcdctl and etcd", strings.TrimPrefix(etcdctlVersion, "v"))
	r.used("Consul", strings.TrimPrefix(consulVersion, "v"))
	return []wrapper{
		{
			name:   tenureExec,
			obtain: func(t *testing.T) (string, error) { return buildTenure(t), nil },
			engine: onEtcd,
			command: func(path, addr string) []string {
				return []string{path, "exec", "-q", "--store=etcd://" + addr, "--ttl=" + lockTTL.String(), group, "--"}
			},
			revoke: revokeLeases,
		},
		{
			name:   etcdctlLock,
			obtain: func(t *testing.T) (string, error) { return etcdctl().obtain(t) },
			engine: onEtcd,
			command: func(path, addr string) []string {
				return []string{path, "--endpoints=" + addr, "lock", "--ttl=" + strconv.Itoa(int(lockTTL.Seconds())), group, "--"}
			},
			revoke: revokeLeases,
		},
		{
			name:   consulLock,
			obtain: func(t *testing.T) (string, error) { return consul().obtain(t) },
			engine: func(t *testing.T, path string) lockEngine { return startConsul(t, path) },
			command: func(path, addr string) []string {
				return []string{path, "lock", "-http-addr=" + addr, "-shell=false", group}
			},
			revoke: destroySessions,
		},
	}
}

// each runs a function for every wrapper that can be built.
func each(t *testing.T, r *row, do func(t *testing.T, w wrapper, path string, e lockEngine)) {
	t.Helper()
	for _, w := range wrappers(r) {
		t.Run(w.name, func(t *testing.T) {
			path, err := w.obtain(t)
			if err != nil {
				t.Log(err)
				r.say(w.name, "%s", notBuilt(err))
				return
			}
			t.Parallel()
			do(t, w, path, w.engine(t, path))
		})
	}
}

// revokeLeases revokes the oldest lease, which is the holder's, and no other.
func revokeLeases(ctx context.Context, addr string) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: wait})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	holder, err := c.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return err
	}
	for _, kv := range holder.Kvs {
		if kv.Lease != 0 {
			_, err := c.Revoke(ctx, clientv3.LeaseID(kv.Lease))
			return err
		}
	}
	return errors.New("no key has a lease")
}

// destroySessions destroys the session that holds the lock.
func destroySessions(ctx context.Context, addr string) error {
	var keys []struct{ Session string }
	if err := ask(ctx, http.DefaultClient, http.MethodGet, "http://"+addr+"/v1/kv/"+group+"?recurse", nil, &keys); err != nil {
		return err
	}
	for _, k := range keys {
		if k.Session != "" {
			return ask(ctx, http.DefaultClient, http.MethodPut, "http://"+addr+"/v1/session/destroy/"+k.Session, nil, nil)
		}
	}
	return fmt.Errorf("none of %d keys has a session", len(keys))
}
