package node_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store/etcd"
)

// A cordoned node keeps campaigning and does not lead. Once the cordon is removed, it leads.
func TestCordoned(t *testing.T) {
	f := startFleet(t, 0)
	store, err := etcd.Open(t.Context(), etcd.Config{Endpoints: f.engine.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	operator := operator.Store{Store: store, Call: patience}
	if _, err := operator.Cordon(t.Context(), "node-1", "disk"); err != nil {
		t.Fatal(err)
	}
	n := mustStart(t, f.role(1))
	asked := regexp.MustCompile(`tenure_engine_calls_total\{call="open",[^}]*\} (\d+)`)
	eventually(t, "the cordoned node asks for a session three times", func() bool {
		_, text := ask(t, "GET", n.URL+"/metrics", "", nil)
		m := asked.FindSubmatch(text)
		if m == nil {
			return false
		}
		calls, err := strconv.Atoi(string(m[1]))
		return err == nil && calls >= 3
	})
	if v, err := store.Read(t.Context(), "billing"); err != nil || v.State != tenure.Vacant || v.Token != 0 {
		t.Errorf("the group of a cordoned node: %+v, %v", v, err)
	}
	if _, err := operator.Cordon(t.Context(), "node-1", ""); err != nil {
		t.Fatal(err)
	}
	leaderOf(t, 0, n)
}
