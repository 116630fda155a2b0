package service

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/store/etcd"
)

// A record that a newer version wrote is refused as newer_format with the remedy, and other
// groups are not affected.
func TestNewerRecord(t *testing.T) {
	cluster := enginetest.Cluster(t, 1, enginetest.FastTicks())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	store, err := etcd.Open(ctx, etcd.Config{Endpoints: cluster.Endpoints(), MinTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	in := serve(t, store)
	client, err := clientv3.New(clientv3.Config{Endpoints: cluster.Endpoints(), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if _, err := client.Put(ctx, "/tenure/record/newer", `{"fence_token":["of another type"],"format":99}`); err != nil {
		t.Fatal(err)
	}

	r := refused(in, http.StatusServiceUnavailable, "newer_format", "POST", "/v1/groups/newer/campaign", CampaignRequest{NodeID: "a"})
	if !strings.Contains(r.String(), "upgrade") {
		t.Errorf("the refusal does not say what to do: %v", r)
	}
	resign(in, lead(in, "known", "a"))
}
