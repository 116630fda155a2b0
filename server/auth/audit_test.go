package auth

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth/audit"
	"github.com/tenurehq/tenure/server/auth/limit"
)

// Every change and every refusal has one line, with who, what, group, token, result and
// reason.
func TestAudit(t *testing.T) {
	r := newRig(t)
	path := r.path("audit.log")
	g, tokens := r.withTokens(Config{Audit: audit.File{Path: path}}, "node-1")
	h, err := g.Guard(Rule{Verb: Campaign, Groups: func(r *http.Request) []string { return []string{r.PathValue("group")} }}, func(_ http.ResponseWriter, r *http.Request) {
		g.Audit(r.Context(), audit.Entry{What: "campaign", Group: r.PathValue("group"), Token: 42, Result: audit.Done, Reason: "two\nlines \x00\xff"})
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/groups/{group}/campaign", h)
	for _, req := range []*http.Request{ask(tokens["node-1"]), ask(""), ask(tokens["node-1"])} {
		mux.ServeHTTP(httptest.NewRecorder(), req)
	}
	other := ask(tokens["node-1"])
	other.URL.Path = "/v1/groups/orders/campaign"
	mux.ServeHTTP(httptest.NewRecorder(), other)
	g.Close()
	lines := auditLines(t, path)
	if len(lines) != 4 {
		t.Fatalf("%d lines: %+v", len(lines), lines)
	}
	for i, want := range []audit.Entry{
		{Who: "node-1", How: string(ByCredential), Remote: "127.0.0.1", What: "campaign", Group: "billing-eu", Token: 42, Result: audit.Done, Reason: "two\nlines \x00\ufffd"},
		{Remote: "127.0.0.1", What: "POST /v1/groups/{group}/campaign", Result: audit.Denied, Reason: "the request carries no credentials: send Authorization: Bearer with a credential"},
		{Who: "node-1", How: string(ByCredential), Remote: "127.0.0.1", What: "campaign", Group: "billing-eu", Token: 42, Result: audit.Done, Reason: "two\nlines \x00\ufffd"},
		{Who: "node-1", How: string(ByCredential), Remote: "127.0.0.1", What: "POST /v1/groups/{group}/campaign", Group: "orders", Result: audit.Denied, Reason: `node-1 (credential) may not campaign on group "orders": the policy of this service does not allow it; ask its operator`},
	} {
		if _, err := time.Parse(time.RFC3339, lines[i].At); err != nil {
			t.Error(err)
		}
		lines[i].At = ""
		if lines[i] != want {
			t.Errorf("line %d: %+v\nwant %+v", i+1, lines[i], want)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info.Mode(), err)
	}
}

// The audit uses a bounded number of files of a bounded size. They have the newest entries,
// in order.
func TestAuditRotates(t *testing.T) {
	r := newRig(t)
	path := r.path("audit.log")
	g := r.gate(Config{Audit: audit.File{Path: path, MaxBytes: 4 << 10, Files: 3}})
	for i := range 500 {
		g.Audit(t.Context(), audit.Entry{What: fmt.Sprint(i), Result: audit.Done})
	}
	g.Close()
	files, err := filepath.Glob(path + "*")
	if want := []string{path, path + ".1", path + ".2"}; err != nil || !slices.Equal(files, want) {
		t.Fatalf("%v, %v", files, err)
	}
	slices.Reverse(files)
	next := 500
	for _, f := range slices.Backward(files) {
		if info, err := os.Stat(f); err != nil || info.Size() > 4<<10 {
			t.Errorf("%s: %d bytes, %v", f, info.Size(), err)
		}
		for _, l := range slices.Backward(auditLines(t, f)) {
			if next--; l.What != fmt.Sprint(next) {
				t.Fatalf("%s has %s where %d is wanted", f, l.What, next)
			}
		}
	}
	if next > 450 {
		t.Errorf("only entries from %d on are left", next)
	}
}

// A full disk blocks nothing: entries wait, then are counted, and the log says so. When there
// is room again, the file gets the waiting entries and the number of lost ones.
func TestAuditOnFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no disk that is always full")
	}
	r := newRig(t)
	path := r.path("audit.log")
	if err := os.Symlink("/dev/full", path); err != nil {
		t.Fatal(err)
	}
	g := r.gate(Config{Audit: audit.File{Path: path, Queue: 5}})
	g.Audit(t.Context(), audit.Entry{What: "0", Result: audit.Done})
	eventually(t, "the fault is seen", func() bool { return g.Stats().AuditFault != "" })
	for i := 1; i < 8; i++ {
		g.Audit(t.Context(), audit.Entry{What: fmt.Sprint(i), Result: audit.Done})
		if _, err := g.Check(ask(""), Campaign, "g"); err != nil {
			t.Errorf("with a full disk: %v", err)
		}
	}
	if s := g.Stats(); s.AuditWaiting != 5 || s.AuditLost != 3 || !strings.Contains(s.AuditFault, "no space") {
		t.Errorf("%+v", s)
	}
	if !strings.Contains(r.log.String(), "level=ERROR") {
		t.Errorf("the log does not say so: %s", r.log)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is written again", func() bool { return g.Stats().AuditFault == "" && g.Stats().AuditWaiting == 0 })
	g.Audit(t.Context(), audit.Entry{What: "8", Result: audit.Done})
	g.Close()
	var got []string
	for _, l := range auditLines(t, path) {
		got = append(got, fmt.Sprint(l.What, " ", l.Lost))
	}
	if want := []string{"audit 3", "0 0", "1 0", "2 0", "3 0", "4 0", "8 0"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The denials of one caller cannot push other entries out of the audit: above a rate they are
// only counted, and the next line has the number.
func TestAuditFlood(t *testing.T) {
	r := newRig(t)
	path := r.path("audit.log")
	g, tokens := r.withTokens(Config{Audit: audit.File{Path: path}}, "node-1", "node-2")
	for range 500 {
		_, _ = g.Check(ask(tokens["node-1"]), Admin, "orders")
	}
	_, _ = g.Check(ask(tokens["node-2"]), Admin, "orders")
	r.time.move(time.Minute)
	_, _ = g.Check(ask(tokens["node-1"]), Admin, "orders")
	g.Close()
	lines := auditLines(t, path)
	if len(lines) != limit.DenialBurst+2 || lines[limit.DenialBurst].Who != "node-2" || lines[limit.DenialBurst+1].Omitted != 500-limit.DenialBurst || g.Stats().Omitted != 500-limit.DenialBurst || g.Stats().Denied != 502 {
		t.Errorf("%d lines, the last %+v; %+v", len(lines), lines[len(lines)-1], g.Stats())
	}
}

// Failures of a caller count like its denials. Its successes are always written.
func TestAuditFailuresFlood(t *testing.T) {
	r := newRig(t)
	path := r.path("audit.log")
	g, tokens := r.withTokens(Config{Audit: audit.File{Path: path}}, "node-1", "node-2")
	h, err := g.Guard(Rule{Verb: Campaign, Groups: func(*http.Request) []string { return []string{"billing-eu"} }}, func(_ http.ResponseWriter, req *http.Request) {
		for range 500 {
			g.Audit(req.Context(), audit.Entry{What: "renew", Result: audit.Failed, Reason: "not_leader"})
		}
		g.Audit(req.Context(), audit.Entry{What: "resign", Result: audit.Done})
	})
	if err != nil {
		t.Fatal(err)
	}
	h(httptest.NewRecorder(), ask(tokens["node-1"]))
	_, _ = g.Check(ask(tokens["node-1"]), Admin, "orders")
	_, _ = g.Check(ask(tokens["node-2"]), Admin, "orders")
	g.Close()
	lines := auditLines(t, path)
	if len(lines) != limit.DenialBurst+2 || lines[limit.DenialBurst].What != "resign" || lines[limit.DenialBurst+1].Who != "node-2" || g.Stats().Omitted != 501-limit.DenialBurst {
		t.Errorf("%d lines, the last %+v; %+v", len(lines), lines[len(lines)-1], g.Stats())
	}
}

// Without a file the audit goes to the log.
func TestAuditToLog(t *testing.T) {
	r := newRig(t)
	g := r.gate(Config{})
	g.Audit(context.Background(), audit.Entry{Who: "alice", What: "step-down", Group: "billing", Token: 7, Result: audit.Done, Reason: "maintenance"})
	for _, want := range []string{"msg=audit", "who=alice", "what=step-down", "group=billing", "token=7", "result=done", "reason=maintenance"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("no %s in %s", want, r.log)
		}
	}
}
