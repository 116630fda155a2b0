//go:build linux

package main

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/service"
)

// A policy creates a group: one that was set directly on the engine is in the service's list,
// and one that was set through the service is in the engine's.
func TestDeclaredAreListed(t *testing.T) {
	engine := etcdURL(enginetest.Cluster(t, 1).Members[0].Addr())
	s := startServe(t, "--store="+engine)
	tenure := func(args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, environment(), strings.NewReader(""), &stdout, &stderr); code != cli.ExitOK {
			t.Errorf("%v: exit code %d\n%s", args, code, &stderr)
		}
		return stdout.String()
	}
	tenure("policy", "set", "straight", "--max-ttl=30s", "--store="+engine)
	tenure("policy", "set", "through", "--max-ttl=30s", "--store="+s.ready.URL)
	var list service.Groups
	if code := s.call(http.MethodGet, "/v1/groups", nil, &list); code != http.StatusOK || len(list.Groups) != 2 {
		t.Fatalf("GET /v1/groups: %d, %+v", code, list.Groups)
	}
	for i, want := range []string{"straight", "through"} {
		if g := list.Groups[i]; g.Group != want || !g.Declared || g.State != "vacant" {
			t.Errorf("GET /v1/groups: %+v", g)
		}
	}
	for _, store := range []string{engine, s.ready.URL} {
		if got := tenure("groups", "-o", "name", "--store="+store); got != "straight\nthrough\n" {
			t.Errorf("tenure groups --store=%s: %q", store, got)
		}
	}
	if code := s.call(http.MethodDelete, "/v1/groups/straight", nil, &struct{}{}); code != http.StatusOK {
		t.Errorf("DELETE: %d", code)
	}
	if got := tenure("groups", "-o", "name", "--store="+engine); got != "through\n" {
		t.Errorf("after it was deleted: %q", got)
	}
}
