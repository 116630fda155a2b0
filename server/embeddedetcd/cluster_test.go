package embeddedetcd

import (
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure/internal/enginetest"
)

// Three processes are one engine: writes continue when one is killed, a watch continues when
// its member stops, and an engine that was restored from a backup has lost what it
// acknowledged since.
func TestProcesses(t *testing.T) {
	e := enginetest.Cluster(t, 3, enginetest.FastTicks())
	c := connect(t, e.Endpoints()...)
	put(t, c, "k", "before")
	backup := e.CopyData()
	put(t, c, "k", "after")

	e.Members[0].Kill()
	for i := range 10 {
		put(t, c, "k", fmt.Sprint(i))
	}
	e.Members[0].Restart()
	if got := get(t, connect(t, e.Members[0].Endpoint())); got != "9" {
		t.Errorf("at the member that came back: %q", got)
	}

	// First connected to the member that will stop, then to any member.
	w := connect(t, e.Members[1].Endpoint())
	watch := w.Watch(t.Context(), "watched", clientv3.WithCreatedNotify())
	<-watch
	w.SetEndpoints(e.Endpoints()...)
	e.Members[1].Stop()
	put(t, c, "watched", "v")
	select {
	case r := <-watch:
		if len(r.Events) != 1 || string(r.Events[0].Kv.Value) != "v" {
			t.Errorf("the watch says %+v", r)
		}
	case <-time.After(10 * time.Second):
		t.Error("the watch did not go on at another member")
	}
	e.Start()

	e.RestoreData(backup)
	if got := get(t, c); got != "before" {
		t.Errorf("set back, and the engine says %q", got)
	}
	if r, err := c.Grant(within(t, 5*time.Second), 1); err != nil || r.TTL != 1 {
		t.Errorf("TTL %v, %v, want 1", r, err)
	}
}

// After a member alone was killed, the next start succeeds: the lock ended with the process.
func TestKilledGivesLockBack(t *testing.T) {
	p := enginetest.Cluster(t, 1, enginetest.FastTicks()).Members[0]
	put(t, connect(t, p.Endpoint()), "k", "v")
	if _, err := Start(t.Context(), Config{DataDir: p.DataDir()}); err == nil || errors.Is(err, ErrNotReady) {
		t.Fatalf("two engines in one directory: %v", err)
	}
	p.Kill()
	e := mustStart(t, Config{DataDir: p.DataDir()})
	if got := get(t, connect(t, e.Endpoints()...)); got != "v" {
		t.Errorf("an acknowledged write after kill -9: %q", got)
	}
}
