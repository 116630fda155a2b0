package service

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/server/service/metrics"
)

// series reads one value of /metrics; "": there is no such series.
func (in *instance) series(name string) string {
	for line := range strings.Lines(string(in.ask("GET", "/metrics", nil).body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// becomes waits for a value of /metrics.
func (in *instance) becomes(name, value string) {
	in.t.Helper()
	eventually(in.t, name+" becomes "+value, func() bool { return in.series(name) == value })
}

// promtool reports no problem with the metrics when each of them has a value.
func TestMetricsAreWellFormed(t *testing.T) {
	in := serve(t, memStore(t))
	resign(in, lead(in, "billing", "a"))
	in.becomes("tenure_groups_without_leader", "1")
	l := lead(in, "billing", "b")
	refused(in, 409, "not_leader", "POST", "/groups/billing/renew", RenewRequest{NodeID: "b", Term: 99, Handle: l.Handle})
	in.becomes("tenure_time_to_elect_seconds_count", "1")
	cmd := servertest.Command(t, "promtool", "check", "metrics")
	cmd.Stdin = bytes.NewReader(in.ask("GET", "/metrics", nil).body)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// The metrics show who leads each group and the role of each node, and the number of series
// is bounded.
func TestRoleMetrics(t *testing.T) {
	in := serve(t, memStore(t))
	l := lead(in, "billing", "a")
	s := want[Session](in, 201, "POST", "/sessions", SessionRequest{NodeID: "b", Groups: []string{"*"}})
	in.becomes(`tenure_group_leader{group="billing",leader_node_id="a"}`, "1")
	in.becomes(`tenure_node_role{node_id="a",role="leader"}`, "1")
	in.becomes(`tenure_node_role{node_id="b",role="candidate"}`, "1")
	want[Resigned](in, 200, "POST", "/groups/billing/resign", ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle, Successor: "b"})
	in.becomes(`tenure_group_leader{group="billing",leader_node_id="b"}`, "1")
	in.becomes(`tenure_group_leader{group="billing",leader_node_id="a"}`, "")
	in.becomes(`tenure_node_role{node_id="a",role="leader"}`, "")
	in.becomes(`tenure_node_role{node_id="b",role="leader"}`, "1")
	in.becomes(`tenure_node_role{node_id="b",role="candidate"}`, "")
	want[Closed](in, 200, "DELETE", "/sessions/"+s.Handle, nil)
	in.becomes(`tenure_group_leader{group="billing",leader_node_id=""}`, "0")
	in.becomes(`tenure_node_role{node_id="b",role="leader"}`, "")

	many := want[Session](in, 201, "POST", "/sessions", SessionRequest{NodeID: "z", Groups: []string{"*"}})
	var groups []string
	for i := range metrics.Labelled + 20 {
		groups = append(groups, fmt.Sprintf("g%03d", i))
		want[Session](in, 201, "POST", "/sessions", SessionRequest{NodeID: fmt.Sprintf("n%03d", i), Groups: []string{"*"}})
	}
	want[Batch](in, 200, "POST", "/sessions/"+many.Handle+"/campaign", BatchRequest{Groups: groups})
	in.becomes(`tenure_group_leader{group="other",leader_node_id="other"}`, "21") // billing has a label too
	in.becomes(`tenure_node_role{node_id="other",role="candidate"}`, "20")
	in.becomes(`tenure_node_role{node_id="other",role="leader"}`, "1") // z sorts last
	text := string(in.ask("GET", "/metrics", nil).body)
	for _, name := range []string{"tenure_group_leader{", "tenure_node_role{"} {
		if n := strings.Count(text, name); n > metrics.Labelled+2 {
			t.Errorf("%s is there %d times", name, n)
		}
	}
}

// A group that may be vacant is not counted as one without a leader. A deleted group has no
// series and is not listed. Both effects end when the policy is reverted.
func TestVacantAndDeletedGroups(t *testing.T) {
	in := serve(t, memStore(t))
	resign(in, lead(in, "job", "a"))
	resign(in, lead(in, "old", "a"))
	l := lead(in, "billing", "a")
	in.becomes("tenure_groups_without_leader", "2")
	want[Group](in, 201, "PUT", "/v1/groups/job", GroupPolicy{MayBeVacant: true})
	in.becomes("tenure_groups_without_leader", "1")
	in.becomes(`tenure_group_leader{group="job",leader_node_id=""}`, "0")
	in.becomes(`tenure_leader_changes_total{group="old"}`, "1")
	want[Group](in, 200, "DELETE", "/v1/groups/old", nil)
	in.becomes("tenure_groups_without_leader", "0")
	in.becomes("tenure_groups", "2")
	in.becomes(`tenure_group_leader{group="old",leader_node_id=""}`, "")
	in.becomes(`tenure_leader_changes_total{group="old"}`, "")
	listed := func() (names []string) {
		for _, g := range want[Groups](in, 200, "GET", "/v1/groups", nil).Groups {
			names = append(names, g.Group)
		}
		return names
	}
	if got := listed(); !slices.Equal(got, []string{"billing", "job"}) {
		t.Errorf("%v", got)
	}
	want[Group](in, 201, "PUT", "/v1/groups/old", GroupPolicy{})
	if got := listed(); !slices.Equal(got, []string{"billing", "job", "old"}) {
		t.Errorf("%v", got)
	}
	in.becomes("tenure_groups_without_leader", "1")
	resign(in, l)
	in.becomes("tenure_groups_without_leader", "2")
}

// Each failed renewal has one of the documented reasons.
func TestRenewFailureReasons(t *testing.T) {
	in := serve(t, memStore(t))
	l := lead(in, "billing", "a")
	refused(in, 409, "not_leader", "POST", "/groups/billing/renew", RenewRequest{NodeID: "a", Term: 9})
	refused(in, 403, "not_your_session", "POST", "/groups/billing/renew", RenewRequest{NodeID: "b", Term: l.Term, Handle: l.Handle})
	in.becomes(`tenure_renew_failures_total{reason="NOT_LEADER"}`, "1")
	in.becomes(`tenure_renew_failures_total{reason="DENIED"}`, "1")
	in.becomes(`tenure_renew_failures_total{reason="BACKEND_DOWN"}`, "0")
	in.becomes(`tenure_renew_failures_total{reason="OTHER"}`, "0")
}

// A split brain is counted when a sink reports a token that contradicts the newest grant:
// once, however often it is reported, and not if the report is late.
func TestSplitBrainReports(t *testing.T) {
	in := serve(t, memStore(t))
	l := lead(in, "billing", "a")
	remote := client(in, nil)
	report := func(seen fence.Token) {
		t.Helper()
		if err := remote.Suspect(bound(t), "billing", seen); err != nil {
			t.Fatal(err)
		}
	}
	resign(in, l)
	l = lead(in, "billing", "b")
	report(l.Term - 1) // an earlier grant, so there is no contradiction
	in.becomes("tenure_split_brain_detected_total", "0")
	report(l.Term + 7)
	report(l.Term + 7)
	in.becomes("tenure_split_brain_detected_total", "1")
}
