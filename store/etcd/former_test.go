package etcd_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/etcd"
)

// former is what the former version wrote: another layout, in format 1.
func former() map[string]string {
	return map[string]string{
		"/tenure/meta":              `{"format":1,"deployment":"dformer","epoch":4,"cluster":"cdf818194e3a8c32"}`,
		"/tenure/election/g":        `{"format":1,"group":"g","node_id":"a","session":"","fence_token":4398046511105,"terms":[]}`,
		"/tenure/granted/g":         `{"format":1,"deployment":"dformer"}`,
		"/tenure/electors/00000001": `{"format":1,"node_id":"a","scope":["g"],"ttl_ms":9000}`,
	}
}

// A prefix that a former version uses is refused, and nothing is written below it. The
// error says what to do, and doing so works: under another prefix with the former name
// tokens are above the former ones.
func TestFormerLayoutRefused(t *testing.T) {
	for name, without := range map[string]string{"complete": "", "without meta": "/tenure/meta", "without records": "/tenure/election/g"} {
		t.Run(name, func(t *testing.T) {
			cluster := enginetest.Cluster(t, 1, enginetest.FastTicks())
			client := raw(t, cluster.Endpoints())
			for key, value := range former() {
				if key == without {
					continue
				}
				if _, err := client.Put(t.Context(), key, value); err != nil {
					t.Fatal(err)
				}
			}
			all := func() *clientv3.GetResponse {
				r, err := client.Get(t.Context(), "/tenure/", clientv3.WithPrefix())
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			before := all()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := etcd.Open(ctx, etcd.Config{Endpoints: cluster.Endpoints()})
			if !errors.Is(err, store.ErrInvalid) || !store.Permanent(err) {
				t.Fatalf("opened: %v", err)
			}
			for _, says := range []string{"/tenure/", "former version", "another prefix", "same deployment name", "raise its epoch"} {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%q does not say %q", err, says)
				}
			}
			if after := all(); after.Count != before.Count || after.Header.Revision != before.Header.Revision {
				t.Errorf("%d keys at revision %d became %d at %d", before.Count, before.Header.Revision, after.Count, after.Header.Revision)
			}
			if without == "/tenure/meta" {
				return
			}
			for _, says := range []string{"dformer", "epoch 4"} {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%q does not say %q", err, says)
				}
			}
			s, err := etcd.Open(ctx, etcd.Config{Endpoints: cluster.Endpoints(), Prefix: "/tenure2", Deployment: "dformer"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			if _, err := s.RaiseEpoch(ctx, 5); err != nil {
				t.Fatal(err)
			}
			session, err := s.Open(ctx, tenure.Candidate{ID: "a"}, time.Minute, store.OpenOptions{Scope: store.Scope{"g"}})
			if err != nil {
				t.Fatal(err)
			}
			if held := take(t, s, session.ID, "g"); session.Deployment != "dformer" || held.Token.Epoch() != 5 {
				t.Errorf("%+v, %+v", session, held)
			}
		})
	}
}

// A program of the former version refuses this layout: it reads the key "meta" first, and
// from it the number of the format, which must be larger than 1.
func TestFormerProgramRefuses(t *testing.T) {
	cluster := enginetest.Cluster(t, 1, enginetest.FastTicks())
	open(t, cluster.Endpoints())
	r, err := raw(t, cluster.Endpoints()).Get(t.Context(), "/tenure/meta")
	if err != nil || r.Count != 1 {
		t.Fatal(r, err)
	}
	var meta struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(r.Kvs[0].Value, &meta); err != nil || meta.Format < 2 {
		t.Errorf("%s: format %d, %v", r.Kvs[0].Value, meta.Format, err)
	}
}
