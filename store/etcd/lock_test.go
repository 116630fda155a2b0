package etcd_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/lock"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

// On etcd, too, locks on names that are used in turn have increasing tokens per name and leave at most
// 64 keys. TENURE_LOCK_NAMES is how many: make bench-lock has 50,000.
func TestNamesInTurn(t *testing.T) {
	names := 30
	if n, err := strconv.Atoi(os.Getenv("TENURE_LOCK_NAMES")); err == nil {
		names = n
	}
	cluster := enginetest.Cluster(t, 1, enginetest.FastTicks())
	st := open(t, cluster.Endpoints())
	driver := etcd.NewDriver(etcd.Config{Endpoints: cluster.Endpoints(), MinTTL: time.Second})
	t.Cleanup(driver.Close)
	keys := func() (n int) { // without those of sessions, which come and go
		for _, prefix := range []string{"record/", "grant/", "history/", "floor/"} {
			items, err := driver.List(t.Context(), prefix, "", 1000)
			if err != nil {
				t.Fatal(err)
			}
			n += len(items)
		}
		return n
	}
	node, err := lease.New(st, lease.Config{Candidate: tenure.Candidate{ID: "p"}, Scope: store.Scope{"set--*"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	locks, err := lock.New(node, "set")
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]fence.Token{}
	for i := range names + names/10 {
		name := fmt.Sprint(i % names)
		err := locks.Do(t.Context(), name, func(_ context.Context, term *tenure.Term) error {
			if term.Token() <= last[name] {
				t.Errorf("%s: token %d after %d", name, term.Token(), last[name])
			}
			last[name] = term.Token()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := node.Close(t.Context()); err != nil {
		t.Error(err)
	}
	left := keys()
	if left > 64 || left == 0 { // the floors are left
		t.Errorf("%d keys are left", left)
	}
	t.Logf("%d names: %d keys are left", names, left)
}
