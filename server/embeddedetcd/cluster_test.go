package embeddedetcd

import (
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure/internal/enginetest"
)

// Three processes are one engine: writes go on when one is killed, a watch goes on
// when the member it was served by stops, and an engine set back to a backup has
// forgotten what it acknowledged since.
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

	// First served by the member that will stop, then free to go anywhere.
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

// A member alone that is removed from the world by a signal it cannot see is
// found by the next start: its lock went with it.
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
