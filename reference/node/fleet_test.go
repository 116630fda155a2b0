package node_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/compactor"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/client"
	"github.com/tenurehq/tenure/reference/node"
)

const ttl = 3 * time.Second

// onEtcd is a fleet of processes on an etcd of their own.
type onEtcd struct {
	t      *testing.T
	engine *enginetest.Engine
	ledger *process
	nodes  []*process
}

func startFleet(t *testing.T, n int) *onEtcd {
	t.Helper()
	f := &onEtcd{t: t, engine: enginetest.Cluster(t, 1), ledger: startLedger(t, "127.0.0.1:0", "")}
	for i := range n {
		f.nodes = append(f.nodes, mustStart(t, f.role(i+1)))
	}
	return f
}

func (f *onEtcd) role(i int) role {
	return role{Node: &nodeRole{
		ID: fmt.Sprintf("node-%d", i), Group: "billing", Listen: "127.0.0.1:0", Store: etcdURL(f.engine),
		Ledger: f.ledger.URL, TTL: ttl, Tick: 200 * time.Millisecond, Hooks: true,
	}}
}

// next takes a number from the leader.
func (f *onEtcd) next() api.Next {
	f.t.Helper()
	var a api.Next
	eventually(f.t, "a number", func() bool {
		for _, p := range f.nodes {
			resp, data, err := try(f.t, "POST", p.URL+"/next", "")
			if err == nil && resp.StatusCode == http.StatusOK {
				return json.Unmarshal(data, &a) == nil
			}
		}
		return false
	})
	return a
}

// follower returns a node that knows that another one leads.
func (f *onEtcd) follower(leader *process) (*process, api.Status) {
	f.t.Helper()
	var found *process
	var s api.Status
	eventually(f.t, "a node that follows", func() bool {
		for _, p := range f.nodes {
			resp, data, err := try(f.t, "GET", p.URL+"/status", "")
			if p != leader && err == nil && resp.StatusCode == http.StatusOK && json.Unmarshal(data, &s) == nil && s.Role == api.Follower {
				found = p
				return true
			}
		}
		return false
	})
	return found, s
}

func (f *onEtcd) failover(token uint64) *api.Failover {
	for _, p := range f.nodes {
		resp, data, err := try(f.t, "GET", p.URL+"/failovers", "")
		var all api.Failovers
		if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(data, &all) != nil {
			continue
		}
		for _, x := range all.Items {
			if uint64(x.Token) == token {
				return &x
			}
		}
	}
	return nil
}

// A fleet on etcd: one node leads and hands out numbers, and the others name it. A transfer,
// a kill -9 and an orderly stop each give the group to another node. Numbers and tokens only
// grow, every failover is recorded with its phases, and every running node serves records
// throughout.
func TestFleet(t *testing.T) {
	f := startFleet(t, 3)
	leader, s := leaderOf(t, 0, f.nodes...)
	if s.LeaseTTLRemainingMS <= 0 || s.LeaseTTLRemainingMS > ttl.Milliseconds() {
		t.Errorf("trust of %d ms", s.LeaseTTLRemainingMS)
	}
	first := f.next()
	var hundred api.Next
	ask(t, "POST", leader.URL+"/v1/next?n=100", "", &hundred)
	if hundred.Seq != first.Seq+1 || hundred.Last != first.Seq+100 || hundred.Token != first.Token {
		t.Errorf("after %+v came %+v", first, hundred)
	}
	follower, fs := f.follower(leader)
	if fs.Leader != s.NodeID || fs.LeaderAddress != leader.URL {
		t.Errorf("a follower thinks that %s at %s leads", fs.Leader, fs.LeaderAddress)
	}
	var problem struct{ Code, Leader, LeaderAddress string }
	resp, body := ask(t, "POST", follower.URL+"/next?n=7", "", &problem)
	if resp.StatusCode != http.StatusConflict || resp.Header.Get("Location") != leader.URL+"/next?n=7" || problem.Code != api.CodeNotLeader || problem.Leader != s.NodeID {
		t.Errorf("a follower: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	for p, want := range map[*process]int{leader: http.StatusOK, follower: http.StatusServiceUnavailable} {
		for _, method := range []string{"GET", "HEAD"} {
			if resp, _ := ask(t, method, p.URL+"/leader", "", nil); resp.StatusCode != want {
				t.Errorf("%s /leader: %d, want %d", method, resp.StatusCode, want)
			}
		}
	}
	f.metrics(leader)
	const large = `{"total_bytes":100000000000,"segment_bytes":1000000,"rate":100000000}`
	if resp, body := ask(t, "POST", leader.URL+"/compaction", large, nil); resp.StatusCode != http.StatusOK {
		t.Errorf("a compaction: %d %s", resp.StatusCode, body)
	}
	if resp, body := ask(t, "POST", leader.URL+"/compaction", large, nil); resp.StatusCode != http.StatusConflict {
		t.Errorf("a second compaction: %d %s", resp.StatusCode, body)
	}

	// A transfer.
	resp, body = ask(t, "POST", leader.URL+"/transfer?to="+fs.NodeID, "", nil, "If-Match", fmt.Sprintf("%q", fmt.Sprint(first.Token+1)))
	if resp.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("a transfer of another term: %d %s", resp.StatusCode, body)
	}
	resp, body = ask(t, "POST", leader.URL+"/transfer?to=nobody", "", nil)
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("a transfer to nobody: %d %s", resp.StatusCode, body)
	}
	if resp, body = ask(t, "POST", leader.URL+"/transfer?to="+fs.NodeID, "", nil); resp.StatusCode != http.StatusOK {
		t.Fatalf("a transfer: %d %s", resp.StatusCode, body)
	}
	second, s2 := leaderOf(t, uint64(s.FenceToken), f.nodes...)
	if s2.NodeID != fs.NodeID {
		t.Errorf("%s leads instead of %s", s2.NodeID, fs.NodeID)
	}
	after := f.next()
	if after.Seq != hundred.Last+1 || after.Token <= hundred.Token {
		t.Errorf("after %+v came %+v", hundred, after)
	}
	eventually(t, "the handover is written down with its gap", func() bool {
		x := f.failover(uint64(after.Token))
		if x == nil || len(x.Phases) < 5 || x.GapUS == nil {
			return false
		}
		if *x.GapUS < 0 || x.Cause != "transferred" || x.Previous != s.NodeID {
			t.Errorf("the handover: %+v, gap %d µs", x, *x.GapUS)
		}
		return true
	})

	// A crash, while records are written through another node.
	survivor, _ := f.follower(second)
	stop := make(chan struct{})
	var writing sync.WaitGroup
	written := 0
	writing.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			resp, data, err := try(t, "PUT", survivor.URL+"/records/r", `{"n":1}`)
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("a record during the failover: %v %s", err, data)
				return
			}
			written++
		}
	})
	second.Kill()
	third, _ := leaderOf(t, uint64(after.Token), f.nodes...)
	close(stop)
	writing.Wait()
	if written == 0 {
		t.Error("no record was written during the failover")
	}
	crashed := f.next()
	if crashed.Seq <= after.Seq || crashed.Token <= after.Token {
		t.Errorf("after %+v came %+v", after, crashed)
	}
	eventually(t, "the crash is written down", func() bool {
		x := f.failover(uint64(crashed.Token))
		if x == nil || len(x.Phases) < 4 {
			return false
		}
		if x.Phases[0].Name != api.PhaseDetect || x.Phases[0].TookUS < (ttl/2).Microseconds() || x.Cause != "expired" || x.GapUS != nil {
			t.Errorf("the crash: %+v", x)
		}
		return true
	})

	eventually(t, "the third leader goes on with the compaction", func() bool {
		var c api.Compaction
		var at compactor.Cursor
		ask(t, "GET", third.URL+"/compaction", "", &c)
		if err := json.Unmarshal(c.Cursor, &at); err != nil {
			t.Fatal(err)
		}
		// The segments that the second leader had claimed when it was killed are redone. The first
		// leader handed over in order.
		return c.Here && at.Leaders == 3 && at.Segment > 0 && at.RedoneSegments > 0 && at.RedoneSegments <= 16
	})

	// An orderly stop.
	if err := third.stop(t); err != nil {
		t.Errorf("a stop in order: %v", err)
	}
	began := time.Now()
	f.drop(second, third)
	leaderOf(t, uint64(crashed.Token), f.nodes...)
	if took := time.Since(began); took > ttl {
		t.Errorf("the successor led %v after a handover in order", took)
	}
	if last := f.next(); last.Seq <= crashed.Seq || last.Token <= crashed.Token {
		t.Errorf("after %+v came %+v", crashed, last)
	}
}

func (f *onEtcd) drop(gone ...*process) {
	var left []*process
	for _, p := range f.nodes {
		keep := true
		for _, g := range gone {
			keep = keep && p != g
		}
		if keep {
			left = append(left, p)
		}
	}
	f.nodes = left
}

func (f *onEtcd) metrics(p *process) {
	f.t.Helper()
	_, body := ask(f.t, "GET", p.URL+"/metrics", "", nil)
	for _, want := range []string{
		`tenure_is_leader{group="billing"} 1`, "tenure_token{", "tenure_terms_total{", "tenure_keepalive_seconds_count{", "tenure_trust_remaining_seconds{",
		`tenure_fence_rejected_total{group="billing",reason="stale",sink="ledger"} 0`, "tenure_time_to_elect_seconds_count{", "tenure_leader_changes_total{",
		`tenure_renew_failures_total{group="billing",reason="BACKEND_DOWN"}`, `tenure_store_quorum_health{group="billing"} 1`,
		"tenure_fleet_batches_total{", "tenure_failover_phase_seconds{", "tenure_pause_max_seconds{", "tenure_fleet_tick_late_seconds_count{",
	} {
		if !strings.Contains(string(body), want) {
			f.t.Errorf("no %s in /metrics", want)
		}
	}
	cmd := servertest.Command(f.t, "promtool", "check", "metrics")
	cmd.Stdin = bytes.NewReader(body)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		f.t.Errorf("promtool: %v\n%s", err, out)
	}
}

// If a leader is paused between its check and its write, another one takes over. When the
// first one resumes, the ledger refuses its write, and it steps down and follows. A second
// process with the id of a running node is refused at once. A killed node may return when its
// session has ended.
func TestPausedLeader(t *testing.T) {
	f := startFleet(t, 2)
	leader, s := leaderOf(t, 0, f.nodes...)
	before := f.next()
	ask(t, "POST", leader.URL+"/pause?at="+api.MomentWrite, "", nil)
	eventually(t, "the leader stands still", func() bool { return child.Paused(leader.Cmd.Process.Pid) })
	other := f.nodes[0]
	if other == leader {
		other = f.nodes[1]
	}
	_, s2 := leaderOf(t, uint64(s.FenceToken), other)
	f.drop(leader)
	after := f.next()
	if after.Seq <= before.Seq || after.Token <= before.Token {
		t.Errorf("after %+v came %+v", before, after)
	}
	leader.signal(t, syscall.SIGCONT)
	l, err := client.New(client.Config{URL: f.ledger.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	eventually(t, "the stale write is refused", func() bool {
		r, err := l.Rejections(t.Context(), "", 10)
		return err == nil && len(r.Items) > 0 && r.Items[0].Reason == "stale" && r.Items[0].Token == s.FenceToken && r.Items[0].Holder == s.NodeID
	})
	eventually(t, "it follows", func() bool {
		var now api.Status
		ask(t, "GET", leader.URL+"/status", "", &now)
		return now.Role == api.Follower && now.Leader == s2.NodeID
	})
	_, metrics := ask(t, "GET", leader.URL+"/metrics", "", nil)
	if !strings.Contains(string(metrics), `tenure_fence_rejected_total{group="billing",reason="stale",sink="ledger"} 1`) {
		t.Error("the refusal is not in /metrics")
	}

	// Two processes with one id.
	twin := f.role(int(s2.NodeID[len(s2.NodeID)-1] - '0'))
	began := time.Now()
	if _, err := start(t, twin); err == nil || !strings.Contains(err.Error(), "the id is in use") || time.Since(began) > ttl {
		t.Errorf("a twin of a living node: %v after %v", err, time.Since(began))
	}
	other.Kill()
	again := mustStart(t, twin)
	eventually(t, "the node that came back stands in line", func() bool {
		resp, _ := ask(t, "GET", again.URL+"/healthz", "", nil)
		return resp.StatusCode == http.StatusOK
	})
}

// While the ledger is down, nothing is answered that was not written, and the leader steps
// down. When the ledger is back, numbers continue where they were.
func TestLedgerGone(t *testing.T) {
	addr, err := child.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	db := t.TempDir() + "/ledger.db"
	l := startLedger(t, addr[0], db)
	n := mustStart(t, role{Node: &nodeRole{
		ID: "n1", Group: "billing", Listen: "127.0.0.1:0", Store: node.StoreMem, Ledger: l.URL, TTL: time.Second,
		SinkPatience: 500 * time.Millisecond, Tick: 100 * time.Millisecond,
	}})
	_, s := leaderOf(t, 0, n)
	var before, after api.Next
	ask(t, "POST", n.URL+"/next", "", &before)
	l.Kill()
	resp, body := ask(t, "POST", n.URL+"/next", "", nil)
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("without a ledger: %d %s", resp.StatusCode, body)
	}
	eventually(t, "it steps down", func() bool {
		var now api.Status
		ask(t, "GET", n.URL+"/status", "", &now)
		return now.Role != api.Leader
	})
	if resp, _ := ask(t, "GET", n.URL+"/healthz", "", nil); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("/healthz without a ledger: %d", resp.StatusCode)
	}
	startLedger(t, addr[0], db)
	leaderOf(t, uint64(s.FenceToken), n)
	ask(t, "POST", n.URL+"/next", "", &after)
	if after.Seq <= before.Seq || after.Token <= before.Token {
		t.Errorf("after %+v came %+v", before, after)
	}
	// Each process with a store in memory begins above the marks of the previous one.
	token := uint64(after.Token)
	for range 2 {
		if err := n.stop(t); err != nil {
			t.Error(err)
		}
		n = mustStart(t, role{Node: &nodeRole{ID: "n1", Group: "billing", Listen: "127.0.0.1:0", Store: node.StoreMem, Ledger: l.URL}})
		_, s = leaderOf(t, token, n)
		token = uint64(s.FenceToken)
	}
}

// A fleet on Raft needs no other service but the ledger: it elects, hands over, survives the
// loss of its leader, and does not lead without its ledger.
func TestRaft(t *testing.T) {
	l := startLedger(t, "127.0.0.1:0", "")
	addrs, err := child.FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	peers := map[string]string{"n1": addrs[0], "n2": addrs[1], "n3": addrs[2]}
	var nodes []*process
	for id := range peers {
		nodes = append(nodes, mustStart(t, role{Node: &nodeRole{
			ID: id, Group: "billing", Listen: "127.0.0.1:0", Store: node.StoreRaft, Peers: peers, DataDir: t.TempDir(), Ledger: l.URL,
			ElectionTimeout: 2 * time.Second, SinkPatience: time.Second, Tick: 100 * time.Millisecond,
		}}))
	}
	leader, s := leaderOf(t, 0, nodes...)
	var first, second, third api.Next
	ask(t, "POST", leader.URL+"/next", "", &first)
	if resp, body := ask(t, "POST", leader.URL+"/resign", "", nil); resp.StatusCode != http.StatusOK {
		t.Fatalf("a resignation: %d %s", resp.StatusCode, body)
	}
	leader, s = leaderOf(t, uint64(s.FenceToken), nodes...)
	ask(t, "POST", leader.URL+"/next", "", &second)
	leader.Kill()
	var left []*process
	for _, p := range nodes {
		if p != leader {
			left = append(left, p)
		}
	}
	leader, _ = leaderOf(t, uint64(s.FenceToken), left...)
	ask(t, "POST", leader.URL+"/next", "", &third)
	if first.Seq >= second.Seq || second.Seq >= third.Seq || first.Token >= second.Token || second.Token >= third.Token {
		t.Errorf("%+v, %+v, %+v", first, second, third)
	}
	l.Kill()
	eventually(t, "without a ledger nobody leads", func() bool {
		for _, p := range left {
			var now api.Status
			if ask(t, "GET", p.URL+"/status", "", &now); now.Working {
				return false
			}
		}
		return true
	})
}

// A fleet on PostgreSQL hands over and replaces a killed leader.
func TestFleetOnPostgres(t *testing.T) {
	engine := servertest.Postgres(t)
	l := startLedger(t, "127.0.0.1:0", "")
	var nodes []*process
	for _, id := range []string{"n1", "n2"} {
		nodes = append(nodes, mustStart(t, role{Node: &nodeRole{
			ID: id, Group: "billing", Listen: "127.0.0.1:0", Store: engine.URL(), Ledger: l.URL, TTL: 2 * time.Second, Tick: 100 * time.Millisecond,
		}}))
	}
	leader, s := leaderOf(t, 0, nodes...)
	if s.Backend != "postgres" {
		t.Errorf("the status names the engine %q", s.Backend)
	}
	if resp, body := ask(t, "POST", leader.URL+"/resign", "", nil); resp.StatusCode != http.StatusOK {
		t.Fatalf("a resignation: %d %s", resp.StatusCode, body)
	}
	var first, second api.Next
	leader, s = leaderOf(t, uint64(s.FenceToken), nodes...)
	ask(t, "POST", leader.URL+"/next", "", &first)
	leader.Kill()
	var left []*process
	for _, p := range nodes {
		if p != leader {
			left = append(left, p)
		}
	}
	leader, _ = leaderOf(t, uint64(s.FenceToken), left...)
	ask(t, "POST", leader.URL+"/next", "", &second)
	if first.Seq >= second.Seq || first.Token >= second.Token {
		t.Errorf("%+v, %+v", first, second)
	}
}

// A single node: the leader writes jobs and fires each once, records have versions, bodies
// have a limit, and the lab's routes are not found.
func TestSingle(t *testing.T) {
	l := startLedger(t, "127.0.0.1:0", "")
	n := mustStart(t, role{Node: &nodeRole{ID: "n1", Group: "billing", Listen: "127.0.0.1:0", Store: node.StoreMem, Ledger: l.URL, Tick: 50 * time.Millisecond}})
	leaderOf(t, 0, n)
	for _, tt := range []struct {
		method, path, body string
		headers            []string
		status             int
		says               string
	}{
		{"PUT", "/records/a", `{"x":1}`, []string{"If-None-Match", "*"}, 200, `"version":1`},
		{"PUT", "/records/a", `{"x":1}`, []string{"If-None-Match", "*"}, 412, "version_conflict"},
		{"PUT", "/v1/records/a", `2`, []string{"If-Match", `"1"`}, 200, `"version":2`},
		{"PUT", "/records/a", `2`, []string{"If-Match", `"1"`}, 412, `"current_version":2`},
		{"PUT", "/records/a", `2`, []string{"If-Match", `one`}, 400, "If-Match"},
		{"PUT", "/records/a", `{`, nil, 400, "bad_body"},
		{"GET", "/records/a", "", nil, 200, `"value":2`},
		{"GET", "/records/a", "", []string{"If-None-Match", `"2"`}, 304, ""},
		{"GET", "/records/b", "", nil, 404, "not_found"},
		{"DELETE", "/records/a", "", []string{"If-Match", `"2"`}, 200, ""},
		{"POST", "/jobs", `{"key":"j","schedule":"whenever"}`, nil, 400, "schedule"},
		{"POST", "/jobs", `{"key":"j","schedule":"@every 1s","misfire":"all"}`, nil, 200, `"next_ms"`},
		{"GET", "/jobs/j", "", nil, 200, `"schedule":"@every 1s"`},
		{"GET", "/jobs?limit=0", "", nil, 400, "limit"},
		{"GET", "/jobs", "", nil, 200, `"total":1`},
		{"PUT", "/fleet", `{"orders":[{"name":"x"}]}`, nil, 400, "orders[0]"},
		{"PUT", "/fleet", `{}`, nil, 400, "must be given"},
		{"PUT", "/fleet", `{"orders":[{"name":"x","run":"nonsense","every_ms":1000}]}`, nil, 400, "none of count"},
		{"PUT", "/fleet", `{"orders":[{"name":"x","run":"count","every_ms":1000}]}`, nil, 200, `"version":1`},
		{"PUT", "/fleet", `{"orders":[]}`, []string{"If-Match", `"7"`}, 412, `"current_version":1`},
		{"GET", "/fleet", "", nil, 200, `"run":"count"`},
		{"GET", "/compaction", "", nil, 404, "not_found"},
		{"POST", "/compaction", `{"total_bytes":-1}`, nil, 400, "compaction"},
		{"POST", "/compaction", `{"total_bytes":1000,"segment_bytes":100}`, nil, 200, `"cursor"`},
		{"POST", "/next?n=0", "", nil, 400, "from 1 to"},
		{"POST", "/next?n=100001", "", nil, 400, "from 1 to"},
		{"POST", "/next?n=x", "", nil, 400, "from 1 to"},
		{"POST", "/next?m=1&n=2", "", nil, 200, `"last"`},
		{"GET", "/next", "", nil, 405, "POST"},
		{"POST", "/lab/pause", "", nil, 404, "no_such_path"},
		{"GET", "/lab/attempts", "", nil, 404, "no_such_path"},
		{"POST", "/transfer", "", nil, 404, "no standby"},
		{"POST", "/resign", "", []string{"Origin", "http://evil.example"}, 403, "foreign_origin"},
		{"POST", "/resign", "", []string{"X-Forwarded-For", "192.0.2.1"}, 403, "denied"},
	} {
		resp, body := ask(t, tt.method, n.URL+tt.path, tt.body, nil, tt.headers...)
		if resp.StatusCode != tt.status || !strings.Contains(string(body), tt.says) {
			t.Errorf("%s %s %s: %d %s, want %d and %s", tt.method, tt.path, tt.headers, resp.StatusCode, body, tt.status, tt.says)
		}
	}
	large := strings.Repeat("x", 100<<20)
	for _, path := range []string{"/next", "/jobs", "/records/a"} {
		method := "POST"
		if path == "/records/a" {
			method = "PUT"
		}
		// The server may close the connection while the body is sent.
		resp, body, err := try(t, method, n.URL+path, large)
		if err == nil && resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%s with 100 MB: %d %s", path, resp.StatusCode, body)
		}
	}
	eventually(t, "the compaction is finished", func() bool {
		var c api.Compaction
		ask(t, "GET", n.URL+"/compaction", "", &c)
		return c.Finished
	})
	eventually(t, "the job is fired twice", func() bool {
		var page ledgerapi.Page[ledgerapi.Firing]
		ask(t, "GET", n.URL+"/firings", "", &page)
		seen := map[int64]bool{}
		for _, f := range page.Items {
			if seen[f.AtMS] {
				t.Fatalf("%d was fired twice", f.AtMS)
			}
			seen[f.AtMS] = true
		}
		return len(seen) >= 2
	})
	if resp, body := ask(t, "DELETE", n.URL+"/jobs/j", "", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("deleting a job: %d %s", resp.StatusCode, body)
	}
	if resp, _ := ask(t, "DELETE", n.URL+"/jobs/j", "", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("deleting it again: %d", resp.StatusCode)
	}
	if err := n.stop(t); err != nil {
		t.Error(err)
	}
}
