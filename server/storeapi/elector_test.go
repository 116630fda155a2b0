package storeapi_test

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/electortest"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
	"github.com/tenurehq/tenure/tenuretest"
)

// candidate is a process with its own connections to the service.
type candidate struct {
	*tenuretest.Node
	elector tenure.Elector
}

func (c candidate) Elector() tenure.Elector { return c.elector }

// Package lease passes the tests of an Elector through two instances of the service, each a
// process on etcd, although one of them is killed every few seconds.
func TestElectorWithInstancesKilled(t *testing.T) {
	engine := enginetest.Cluster(t, 1, enginetest.FastTicks())
	both := []*process{startProcess(t, engine.Endpoints()), startProcess(t, engine.Endpoints())}
	urls := turns(both[0].url(), both[1].url())
	const ttl = 3 * time.Second

	stop := make(chan struct{})
	var killer sync.WaitGroup
	kills := 0
	killer.Go(func() {
		pause := func(d time.Duration) bool {
			select {
			case <-stop:
				return false
			case <-time.After(d):
				return true
			}
		}
		for pause(1500 * time.Millisecond) {
			victim := both[kills%2]
			victim.kill()
			kills++
			gone := pause(time.Second)
			victim.start()
			if !gone {
				return
			}
		}
	})
	t.Run("cases", func(t *testing.T) {
		electortest.Run(t, electortest.Engine{
			Start: func(t *testing.T, group, id string) electortest.Process {
				n, err := tenuretest.NewNode(connect(t, remote.Config{URLs: urls(), Heartbeat: 250 * time.Millisecond}), lease.Config{
					Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{group}, Timing: lease.Timing{TTL: ttl},
					Log: slog.New(slog.DiscardHandler),
				})
				if err != nil {
					t.Fatal(err)
				}
				return candidate{n, n.Elector(group)}
			},
			Lease:    ttl,
			Failover: ttl + 4*time.Second,
			Transfer: true,
			Parallel: true,
		})
	})
	close(stop)
	killer.Wait()
	if kills < 3 {
		t.Errorf("only %d instances were killed: this shows nothing", kills)
	}
	t.Logf("%d instances were killed", kills)
}
