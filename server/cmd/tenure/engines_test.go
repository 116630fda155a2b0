package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/service"
)

// With --store=postgres://… a service and the commands share the elections of a database, and
// doctor knows its limits.
func TestStorePostgres(t *testing.T) {
	url := servertest.Postgres(t).URL()
	tenure := func(code int, args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if got := run(t.Context(), append(args, "--store", url, "--timeout=30s"), environment(), strings.NewReader(""), &stdout, &stderr); got != code {
			t.Fatalf("%v: exit code %d, want %d\n%s%s", args, got, code, &stdout, &stderr)
		}
		return stdout.String()
	}
	tenure(cli.ExitNo, "leader", "billing")
	p := startServe(t, "--store", url)
	var l service.Leading
	p.until("POST", "/v1/groups/billing/campaign", service.CampaignRequest{NodeID: "a", Instance: "process-a-of-the-test"}, &l)
	if out := tenure(cli.ExitOK, "leader", "billing", "-o", "name"); strings.TrimSpace(out) != "a" {
		t.Errorf("the leader is %q", out)
	}
	if strings.Contains(strings.Join(p.ready.Store, ""), "tenure@") {
		t.Errorf("the service prints the user of its engine: %q", p.ready.Store)
	}
	var found struct {
		Findings []struct{ Level, Check, Says, Finding string }
	}
	if err := json.Unmarshal([]byte(tenure(cli.ExitOK, "doctor", "--measure=10ms", "--ttl=60s", "-o", "json")), &found); err != nil {
		t.Fatal(err)
	}
	checks := map[string]string{}
	for _, f := range found.Findings {
		checks[f.Check] = f.Level
	}
	if checks["engine"] != "ok" || checks["durability"] != "ok" {
		t.Errorf("%+v", found)
	}
}
