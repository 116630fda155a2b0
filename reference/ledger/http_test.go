package ledger_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/client"
	"github.com/tenurehq/tenure/reference/ledger/ledgerhttp"
	"github.com/tenurehq/tenure/server/httpapi"
)

// site is a ledger in this process, served as the program serves it.
type site struct {
	*client.Client
	t   *testing.T
	l   *ledger.Ledger
	url string
}

func serveHere(t *testing.T, cfg ledger.Config) *site {
	t.Helper()
	if cfg.DB == "" {
		cfg.DB = filepath.Join(t.TempDir(), "l.db")
	}
	l := open(t, cfg)
	server := httptest.NewUnstartedServer(ledgerhttp.Handler(l, 100_000))
	server.Config.MaxHeaderBytes = 32 << 10
	server.Start()
	t.Cleanup(server.Close)
	c, err := client.New(client.Config{URL: server.URL, Holder: "node-1 <ü>"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &site{c, t, l, server.URL}
}

// reply is a complete answer.
type reply struct {
	StatusCode int
	Header     http.Header
}

// send makes a request; headers are "Name: value".
func (s *site) send(method, path, body string, headers ...string) (reply, map[string]any) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range headers {
		k, v, _ := strings.Cut(h, ": ")
		req.Header.Add(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var v map[string]any
	_ = json.Unmarshal(data, &v)
	return reply{resp.StatusCode, resp.Header}, v
}

func stamped(token string, more ...string) []string {
	return append([]string{"Fencing-Deployment: prod", "Fencing-Group: billing", "Fencing-Token: " + token}, more...)
}

const aTick = `{"writes":[{"tick":{"payload":1}}]}`

// An invalid token is refused with a clear error and has no effect, and the next valid write
// succeeds.
func TestBadTokens(t *testing.T) {
	s := serveHere(t, ledger.Config{})
	honest := func(what string) {
		t.Helper()
		if resp, v := s.send("POST", "/v1/resources/r/batch", aTick, stamped("7")...); resp.StatusCode != http.StatusOK {
			t.Fatalf("after %s an honest write is answered %d %v", what, resp.StatusCode, v)
		}
	}
	honest("nothing")
	for _, tt := range []struct {
		name, token string
		status      int
		code, says  string
	}{
		{"MAX_INT64", "9223372036854775807", 400, "invalid", "from 1 to 2^53-1"},
		{"MAX_UINT64", "18446744073709551615", 400, "invalid", "from 1 to 2^53-1"},
		{"the words", "MAX_INT", 400, "invalid", "decimal digits only"},
		{"2^53+1", "9007199254740993", 400, "invalid", "at most 2^53-1"},
		{"2^53-1", "9007199254740991", 409, "slip", "advance the mark by hand"},
		{"negative", "-1", 400, "invalid", "decimal digits only"},
		{"fraction", "1.5", 400, "invalid", "decimal digits only"},
		{"empty", "", 400, "invalid", "missing"},
		{"zero", "0", 400, "invalid", "from 1"},
		{"20 kB", strings.Repeat("9", 20_000), 400, "invalid", "20000 bytes"},
		{"lower", "6", 412, "stale", "token 7"},
	} {
		resp, v := s.send("POST", "/v1/resources/r/batch", aTick, stamped(tt.token)...)
		detail, _ := v["detail"].(string)
		if resp.StatusCode != tt.status || v["code"] != tt.code || !strings.Contains(detail, tt.says) || resp.Header.Get("Content-Type") != httpapi.ContentTypeProblem {
			t.Errorf("%s: %d %s %v; want %d %s saying %q", tt.name, resp.StatusCode, resp.Header.Get("Content-Type"), v, tt.status, tt.code, tt.says)
		}
		if current, ok := v["current_token"]; (tt.status != 400) != ok || ok && current != 7.0 {
			t.Errorf("%s: current_token is %v", tt.name, current)
		}
		honest(tt.name)
	}
	resp, v := s.send("POST", "/v1/resources/r/batch", aTick)
	if resp.StatusCode != http.StatusPreconditionRequired || v["code"] != "missing" {
		t.Errorf("without a stamp: %d %v", resp.StatusCode, v)
	}
	resp, v = s.send("POST", "/v1/resources/r/batch", aTick, stamped("7", "Fencing-Token: 8")...)
	if resp.StatusCode != http.StatusBadRequest || v["code"] != "invalid" {
		t.Errorf("with two tokens: %d %v", resp.StatusCode, v)
	}
	for _, seq := range []string{"-1", "1.5", "9007199254740993"} {
		if resp, v := s.send("POST", "/v1/resources/r/batch", aTick, stamped("7", "Fencing-Seq: "+seq)...); resp.StatusCode != http.StatusBadRequest || v["field"] != "seq" {
			t.Errorf("seq %s: %d %v", seq, resp.StatusCode, v)
		}
	}
	tenMegabytes(t, strings.TrimPrefix(s.url, "http://"))
	honest("10 MB of token")
	r, err := s.Resource(t.Context(), "r")
	if err != nil || r.Token != 7 {
		t.Errorf("in the end the mark is %+v, %v", r, err)
	}
}

// tenMegabytes sends a token of ten megabytes by hand: the server answers with the reason and
// closes the connection before all is sent.
func tenMegabytes(t *testing.T, addr string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	go func() {
		_, _ = io.WriteString(conn, "POST /v1/resources/r/batch HTTP/1.1\r\nHost: x\r\nFencing-Token: "+strings.Repeat("9", 10<<20)+"\r\n\r\n")
	}()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	begin := make([]byte, 64)
	n, err := conn.Read(begin)
	if err != nil || !strings.HasPrefix(string(begin[:n]), "HTTP/1.1 431 ") {
		t.Errorf("10 MB of token: %q, %v", begin[:n], err)
	}
}

// Invalid requests are refused with problem+json.
func TestBadRequests(t *testing.T) {
	s := serveHere(t, ledger.Config{})
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		code                     string
	}{
		{"no such path", "GET", "/v1/nothing", "", 404, "no_such_path"},
		{"no such method", "DELETE", "/v1/resources/r", "", 405, "no_such_method"},
		{"no body", "POST", "/v1/resources/r/batch", "", 400, "bad_body"},
		{"not JSON", "POST", "/v1/resources/r/batch", "{", 400, "bad_body"},
		{"two values", "POST", "/v1/resources/r/batch", aTick + "{}", 400, "bad_body"},
		{"a misspelt field", "POST", "/v1/resources/r/batch", `{"wirtes":[]}`, 400, "bad_body"},
		{"too large", "POST", "/v1/resources/r/batch", `{"digest":"` + strings.Repeat("x", 200_000) + `"}`, 413, "body_too_large"},
		{"no writes", "POST", "/v1/resources/r/batch", `{"writes":[]}`, 400, "invalid_request"},
		{"an empty write", "POST", "/v1/resources/r/batch", `{"writes":[{}]}`, 400, "invalid_request"},
		{"two kinds at once", "POST", "/v1/resources/r/batch", `{"writes":[{"tick":{},"record":{"key":"k","value":1}}]}`, 400, "invalid_request"},
		{"a record without value", "POST", "/v1/resources/r/batch", `{"writes":[{"record":{"key":"k"}}]}`, 400, "invalid_request"},
		{"a negative version", "POST", "/v1/resources/r/batch", `{"writes":[{"record":{"key":"k","value":1,"version":-1}}]}`, 400, "bad_body"},
		{"too many writes", "POST", "/v1/resources/r/batch", `{"writes":[` + strings.Repeat(`{"tick":{}},`, 2000) + `{"tick":{}}]}`, 400, "invalid_request"},
		{"a long name", "POST", "/v1/resources/" + long + "/batch", aTick, 400, "invalid_request"},
		{"a zero byte", "POST", "/v1/resources/a%00b/batch", aTick, 400, "invalid_request"},
		{"a name of two dots", "POST", "/v1/resources/%2e%2e/batch", aTick, 400, "invalid_request"},
		{"no UTF-8", "POST", "/v1/resources/%ff/batch", aTick, 400, "invalid_request"},
		{"no range", "POST", "/v1/resources/r/sequences/s", `{}`, 400, "invalid_request"},
		{"both ranges", "POST", "/v1/resources/r/sequences/s", `{"first":1,"last":1,"n":1}`, 400, "invalid_request"},
		{"backwards", "POST", "/v1/resources/r/sequences/s", `{"first":2,"last":1}`, 400, "invalid_request"},
		{"from zero", "POST", "/v1/resources/r/sequences/s", `{"first":0,"last":1}`, 400, "invalid_request"},
		{"too many numbers", "POST", "/v1/resources/r/sequences/s", `{"n":1000001}`, 400, "invalid_request"},
		{"beyond 2^53", "POST", "/v1/resources/r/sequences/s", `{"first":9007199254740992,"last":9007199254740992}`, 400, "invalid_request"},
		{"fractional n", "POST", "/v1/resources/r/sequences/s", `{"n":1.5}`, 400, "bad_body"},
		{"a job without an instant", "POST", "/v1/resources/r/batch", `{"writes":[{"job":{"key":"k"}}]}`, 400, "invalid_request"},
		{"a job before 1970", "POST", "/v1/resources/r/batch", `{"writes":[{"job":{"key":"k","next_ms":-1}}]}`, 400, "invalid_request"},
		{"a job after 2^53", "POST", "/v1/resources/r/batch", `{"writes":[{"job":{"key":"k","next_ms":9007199254740992}}]}`, 400, "invalid_request"},
		{"a job without key", "POST", "/v1/resources/r/batch", `{"writes":[{"job":{"next_ms":1}}]}`, 400, "invalid_request"},
		{"a job of two dots", "POST", "/v1/resources/r/batch", `{"writes":[{"job":{"key":"..","next_ms":1}}]}`, 400, "invalid_request"},
		{"a misfire that is none", "POST", "/v1/resources/r/batch", `{"writes":[{"job":{"key":"k","next_ms":1,"misfire":"twice"}}]}`, 400, "invalid_request"},
		{"a long schedule", "POST", "/v1/resources/r/batch", `{"writes":[{"job":{"key":"k","next_ms":1,"schedule":"` + long + `"}}]}`, 400, "invalid_request"},
		{"a large payload", "POST", "/v1/resources/r/batch", `{"writes":[{"job":{"key":"k","next_ms":1,"payload":"` + strings.Repeat("x", api.MaxPayload) + `"}}]}`, 400, "invalid_request"},
		{"delete with more", "POST", "/v1/resources/r/batch", `{"writes":[{"job":{"key":"k","next_ms":1,"delete":true}}]}`, 400, "invalid_request"},
		{"fire before it is due", "POST", "/v1/resources/r/batch", `{"writes":[{"fire":{"job":"k","due_ms":2,"at_ms":1}}]}`, 400, "invalid_request"},
		{"fire and stay", "POST", "/v1/resources/r/batch", `{"writes":[{"fire":{"job":"k","due_ms":2,"at_ms":2,"next_ms":2}}]}`, 400, "invalid_request"},
		{"skip and stay", "POST", "/v1/resources/r/batch", `{"writes":[{"fire":{"job":"k","due_ms":2,"next_ms":1,"skip":true}}]}`, 400, "invalid_request"},
		{"fire what is never due", "POST", "/v1/resources/r/batch", `{"writes":[{"fire":{"job":"k","at_ms":1}}]}`, 400, "invalid_request"},
		{"delivered at no time", "POST", "/v1/resources/r/batch", `{"writes":[{"delivered":{"job":"k"}}]}`, 400, "invalid_request"},
		{"delivered by a long name", "POST", "/v1/resources/r/batch", `{"writes":[{"delivered":{"job":"k","at_ms":1,"worker":"` + long + `"}}]}`, 400, "invalid_request"},
		{"job and fire", "POST", "/v1/resources/r/batch", `{"writes":[{"job":{"key":"k","next_ms":1},"fire":{"job":"k","due_ms":1,"at_ms":1}}]}`, 400, "invalid_request"},
		{"jobs before nothing", "GET", "/v1/resources/r/jobs?before_ms=0", "", 400, "invalid_request"},
		{"jobs before x", "GET", "/v1/resources/r/jobs?before_ms=x", "", 400, "invalid_request"},
		{"jobs before 2^63-1", "GET", "/v1/resources/r/jobs?before_ms=9223372036854775807", "", 400, "invalid_request"},
		{"no cursor of jobs", "GET", "/v1/resources/r/jobs?after=5", "", 400, "invalid_request"},
		{"a cursor of no job", "GET", "/v1/resources/r/jobs?after=5:%00", "", 400, "invalid_request"},
		{"pending perhaps", "GET", "/v1/resources/r/firings?pending=perhaps", "", 400, "invalid_request"},
		{"no cursor of firings", "GET", "/v1/resources/r/firings?after=-1", "", 400, "invalid_request"},
		{"no such job", "GET", "/v1/resources/r/jobs/k", "", 404, "not_found"},
		{"no such name", "GET", "/v1/resources/r/jobs/%00", "", 404, "not_found"},
		{"limit 0", "GET", "/v1/resources/r/ticks?limit=0", "", 400, "invalid_request"},
		{"limit 1001", "GET", "/v1/resources?limit=1001", "", 400, "invalid_request"},
		{"no cursor", "GET", "/v1/resources/r/ticks?after=x", "", 400, "invalid_request"},
		{"no such resource", "GET", "/v1/resources/r", "", 404, "not_found"},
		{"no such record", "GET", "/v1/resources/r/records/k", "", 404, "not_found"},
		{"no such checkpoint", "GET", "/v1/resources/r/checkpoints/k", "", 404, "not_found"},
		{"no such sequence", "GET", "/v1/resources/r/sequences/k", "", 404, "not_found"},
	} {
		resp, v := s.send(tt.method, tt.path, tt.body, stamped("7")...)
		if resp.StatusCode != tt.status || v["code"] != tt.code || v["status"] != float64(tt.status) || v["detail"] == "" || resp.Header.Get("Content-Type") != httpapi.ContentTypeProblem {
			t.Errorf("%s: %d %v, want %d %s", tt.name, resp.StatusCode, v, tt.status, tt.code)
		}
	}
	if p, err := s.Resources(t.Context(), "", 0); err != nil || len(p.Items) != 0 {
		t.Errorf("bad requests left %+v, %v", p, err)
	}
}

func value(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// Writes are read back, under /v1 and without it. Versions and keys prevent double writes. A
// batch is made as a whole or not at all.
func TestWriteAndRead(t *testing.T) {
	s := serveHere(t, ledger.Config{Now: func() time.Time { return time.UnixMilli(1234) }})
	ctx := t.Context()
	zero := uint64(0)
	batch := api.Batch{Resource: "a/b c", Stamp: at(7), Writes: []api.Write{
		{Tick: &api.TickWrite{Key: "job@1", Payload: value("\x00 <ü> \u2028")}},
		{Tick: &api.TickWrite{}},
		{Checkpoint: &api.CheckpointWrite{Name: "cursor", Value: value(map[string]int{"at": 5})}},
		{Record: &api.RecordWrite{Key: "k/1", Value: value("v1"), Version: &zero}},
		{Sequence: &api.SequenceWrite{Name: "ids", N: 3}},
		{Sequence: &api.SequenceWrite{Name: "ids", First: 4, Last: 5}},
		{Tick: &api.TickWrite{Key: "job@1", Payload: value("twice")}},
	}}
	a, err := s.Apply(ctx, batch)
	want := api.Answer{Resource: "a/b c", Token: 7, AtMS: 1234, Outcomes: []api.Outcome{
		{Tick: &api.TickOutcome{N: 1}}, {Tick: &api.TickOutcome{N: 2}},
		{Checkpoint: &api.VersionOutcome{Version: 1}}, {Record: &api.VersionOutcome{Version: 1}},
		{Sequence: &api.Range{First: 1, Last: 3}}, {Sequence: &api.Range{First: 4, Last: 5}},
		{Tick: &api.TickOutcome{N: 1, Duplicate: true}},
	}}
	if err != nil || !reflect.DeepEqual(a, want) {
		t.Fatalf("answered %s, %v", value(a), err)
	}

	// The same batch again fails at the record and writes nothing.
	_, err = s.Apply(ctx, batch)
	var version *api.VersionError
	if !errors.As(err, &version) || *version != (api.VersionError{Key: "k/1", Version: 0, Current: 1}) {
		t.Errorf("a record that exists: %v", err)
	}

	ticks, err := s.Ticks(ctx, "a/b c", "", 0)
	if err != nil || len(ticks.Items) != 2 || !reflect.DeepEqual(ticks.Items[0], api.Tick{N: 1, Token: 7, Key: "job@1", Payload: value("\x00 <ü> \u2028"), AtMS: 1234}) || ticks.Items[1].Payload != nil {
		t.Errorf("ticks: %+v, %v", ticks, err)
	}
	if c, err := s.Checkpoint(ctx, "a/b c", "cursor"); err != nil || string(c.Value) != `{"at":5}` || c.Version != 1 || c.Token != 7 {
		t.Errorf("checkpoint: %+v, %v", c, err)
	}
	if r, err := s.Record(ctx, "a/b c", "k/1"); err != nil || string(r.Value) != `"v1"` || r.Version != 1 {
		t.Errorf("record: %+v, %v", r, err)
	}
	if q, err := s.Sequence(ctx, "a/b c", "ids"); err != nil || q != (api.Sequence{Resource: "a/b c", Name: "ids", LastSeq: 5, Token: 7, UpdatedMS: 1234}) {
		t.Errorf("sequence: %+v, %v", q, err)
	}
	if p, err := s.Allocations(ctx, "a/b c", "ids", "", 0); err != nil || len(p.Items) != 1 || p.Items[0] != (api.Allocation{N: 1, First: 1, Last: 5, Token: 7, AtMS: 1234}) {
		t.Errorf("allocations: %+v, %v", p, err)
	}
	if r, err := s.Resource(ctx, "a/b c"); err != nil || r.Mark() != (fence.Mark{Deployment: "prod", Group: "billing", Token: 7}) || r.LastTick != 2 || r.LeadersActing != 1 {
		t.Errorf("resource: %+v, %v", r, err)
	}
	one, two := s.page("/v1/resources/a%2Fb%20c"), s.page("/resources/a%2Fb%20c")
	if one == "" || one != two {
		t.Errorf("with /v1 %q, without %q", one, two)
	}
	resp, _ := s.send("GET", "/records", "")
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("records outside of a resource: %d", resp.StatusCode)
	}
	if resp, _ := s.send("GET", "/v1/resources/a%2Fb%20c/records/k%2F1", "", `If-None-Match: "1"`); resp.StatusCode != http.StatusNotModified || resp.Header.Get("ETag") != `"1"` {
		t.Errorf("a record that has not changed: %d %v", resp.StatusCode, resp.Header)
	}
}

func (s *site) page(path string) string {
	s.t.Helper()
	_, v := s.send("GET", path, "")
	return string(value(v))
}

// Consecutive pages of a list have no gap.
func TestPages(t *testing.T) {
	s := serveHere(t, ledger.Config{})
	ctx := t.Context()
	for i := range 25 {
		b := api.Batch{Resource: fmt.Sprintf("r%02d", i), Stamp: at(7), Writes: []api.Write{
			{Tick: &api.TickWrite{}}, {Tick: &api.TickWrite{}}, {Tick: &api.TickWrite{}},
			{Record: &api.RecordWrite{Key: "b", Value: value(1)}}, {Record: &api.RecordWrite{Key: "a", Value: value(1)}}, {Record: &api.RecordWrite{Key: "c", Value: value(1)}},
		}}
		if _, err := s.Apply(ctx, b); err != nil {
			t.Fatal(err)
		}
		_ = s.Seal(ctx, b.Resource, at(6))
	}
	names := ""
	for _, r := range whole(t, func(after string) (api.Page[api.Resource], error) { return s.Resources(ctx, after, 7) }) {
		names += r.Name[1:]
	}
	if names != "00010203040506070809101112131415161718192021222324" {
		t.Errorf("resources: %s", names)
	}
	ns := ""
	for _, k := range whole(t, func(after string) (api.Page[api.Tick], error) { return s.Ticks(ctx, "r03", after, 2) }) {
		ns += fmt.Sprint(k.N)
	}
	for _, r := range whole(t, func(after string) (api.Page[api.Record], error) { return s.Records(ctx, "r03", after, 2) }) {
		ns += r.Key
	}
	if ns != "123abc" {
		t.Errorf("ticks and records: %s", ns)
	}
	ids := []uint64{}
	for _, r := range whole(t, func(after string) (api.Page[api.Rejection], error) {
		p, err := s.Rejections(ctx, after, 10)
		return p.Page, err
	}) {
		ids = append(ids, r.ID)
	}
	if len(ids) != 25 || ids[0] != 25 || ids[24] != 1 {
		t.Errorf("rejections: %v", ids)
	}
}

// A leader proposes its range, and only the one that follows the last number is accepted. A
// refusal has the last number. A repeated strict request gets the same numbers.
func TestSequences(t *testing.T) {
	s := serveHere(t, ledger.Config{})
	ctx := t.Context()
	take := func(stamp fence.Stamp, w api.SequenceWrite) (string, error) {
		w.Name = "ids"
		r, err := s.Allocate(ctx, "r", stamp, w)
		return fmt.Sprintf("%d..%d", r.First, r.Last), err
	}
	for _, tt := range []struct {
		name  string
		stamp fence.Stamp
		w     api.SequenceWrite
		want  string
		last  uint64 // if it does not follow the last number
	}{
		{"proposed", at(4), api.SequenceWrite{First: 1, Last: 10}, "1..10", 0},
		{"the same again", at(4), api.SequenceWrite{First: 1, Last: 10}, "", 10},
		{"overlapping", at(4), api.SequenceWrite{First: 10, Last: 12}, "", 10},
		{"with a gap", at(4), api.SequenceWrite{First: 12, Last: 12}, "", 10},
		{"picked", at(4), api.SequenceWrite{N: 5}, "11..15", 0},
		{"the next leader", at(5), api.SequenceWrite{First: 16, Last: 16}, "16..16", 0},
		{"strict", atSeq(5, 1), api.SequenceWrite{N: 2}, "17..18", 0},
		{"strict, repeated", atSeq(5, 1), api.SequenceWrite{N: 2}, "17..18", 0},
		{"strict, the next", atSeq(5, 2), api.SequenceWrite{N: 2}, "19..20", 0},
	} {
		got, err := take(tt.stamp, tt.w)
		var wrong *api.SequenceError
		switch {
		case tt.want != "" && (err != nil || got != tt.want):
			t.Errorf("%s: %s, %v; want %s", tt.name, got, err, tt.want)
		case tt.want == "" && (!errors.As(err, &wrong) || wrong.LastSeq != tt.last || wrong.Name != "ids" || wrong.First != tt.w.First):
			t.Errorf("%s: %s, %v", tt.name, got, err)
		}
	}
	_, err := take(at(4), api.SequenceWrite{N: 1})
	var stale *fence.StaleError
	if !errors.As(err, &stale) || stale.Mark.Token != 5 {
		t.Errorf("the old leader: %v", err)
	}
	var clone *fence.CloneError
	if _, err = take(atSeq(5, 2), api.SequenceWrite{N: 3}); !errors.As(err, &clone) {
		t.Errorf("another request with the same stamp: %v", err)
	}
	for i, body := range []string{`{"n":1}`, ` { "n" : 1 } `, `{"last":23,"first":23}`, `{"first":24,"last":24}` + strings.Repeat(" ", 100)} {
		if resp, v := s.send("POST", "/v1/resources/r/sequences/ids", body, stamped("5")...); resp.StatusCode != http.StatusOK || v["first"] != float64(21+i) || v["last"] != float64(21+i) {
			t.Errorf("%.30s: %d %v", body, resp.StatusCode, v)
		}
	}
	resp, v := s.send("POST", "/sequences/ids", `{"n":1}`, stamped("5")...)
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("a sequence of no resource: %d %v", resp.StatusCode, v)
	}
}

// A seal raises the mark, and an operator on this machine can raise it past the slip rule.
// Every refusal arrives as the error of the rule.
func TestSealAndAdvance(t *testing.T) {
	s := serveHere(t, ledger.Config{})
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	sealer := s.Sealer("r")
	must(sealer.Seal(ctx, at(5)))
	err := sealer.Seal(ctx, at(4))
	want := &fence.StaleError{Stamp: at(4), Mark: fence.Mark{Deployment: "prod", Group: "billing", Token: 5}}
	var stale *fence.StaleError
	if !errors.As(err, &stale) || *stale != *want || !errors.Is(err, fence.ErrRefused) {
		t.Errorf("a lower seal: %#v", err)
	}
	var slip *fence.SlipError
	if err := s.Seal(ctx, "r", at(5_000_000)); !errors.As(err, &slip) || slip.Mark.Token != 5 {
		t.Errorf("a slip: %v", err)
	}
	must(s.Advance(ctx, "r", at(5_000_000)))
	must(s.Seal(ctx, "r", at(5_000_001)))
	var foreign *fence.ForeignError
	if err := s.Seal(ctx, "r", fence.Stamp{Deployment: "staging", Group: "billing", Token: 6_000_000}); !errors.As(err, &foreign) || foreign.Mark.Deployment != "prod" {
		t.Errorf("a foreign seal: %v", err)
	}

	h := ledgerhttp.Handler(s.l, 0)
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/v1/resources/r/advance", http.NoBody)
	for _, line := range stamped("6000000") {
		k, v, _ := strings.Cut(line, ": ")
		r.Header.Set(k, v)
	}
	h.ServeHTTP(w, r) // httptest uses the address 192.0.2.1
	if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), `"denied"`) {
		t.Errorf("advance from another machine: %d %s", w.Code, w.Body)
	}

	got, err := s.Rejections(ctx, "", 0)
	if err != nil || got.Total != 3 || len(got.Items) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, reason := range []string{"foreign", "slip", "stale"} {
		if got.Items[i].Reason != reason || got.Items[i].Holder != "node-1 <ü>" || got.Items[i].Resource != "r" || got.Items[i].CurrentToken == 0 || got.Items[i].AtMS == 0 {
			t.Errorf("rejection %d: %+v", i, got.Items[i])
		}
	}
}

// steppedClock is a clock that stands still until the test advances it.
type steppedClock struct{ now atomic.Int64 }

func (c *steppedClock) Now() clock.Instant    { return clock.Instant(c.now.Load()) }
func (c *steppedClock) NewTimer() clock.Timer { return clock.NewRuntimeTimer(c) }

func (s *site) metric(name string) string {
	s.t.Helper()
	resp, err := http.Get(s.url + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, _ := io.ReadAll(resp.Body)
	for line := range bytes.Lines(data) {
		if v, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			return strings.TrimSpace(string(v))
		}
	}
	return "absent"
}

// With fencing on, a stale write is refused, listed and counted, and one leader acts. With
// fencing off it is accepted and still listed, every answer says that fencing is off, two
// leaders act, and the split brain is counted.
func TestFencingOnAndOff(t *testing.T) {
	for _, off := range []bool{false, true} {
		c := &steppedClock{}
		s := serveHere(t, ledger.Config{Unfenced: off, Clock: c})
		ctx := t.Context()
		write := func(token fence.Token) error {
			_, err := s.Apply(ctx, api.Batch{Resource: "r", Stamp: at(token), Writes: []api.Write{{Tick: &api.TickWrite{}}}})
			return err
		}
		acting := func(want string) {
			t.Helper()
			if got := s.metric(`leaders_acting{resource="r"}`); got != want {
				t.Errorf("off %v: leaders_acting is %s, want %s", off, got, want)
			}
		}
		acting("absent")
		if err := write(4); err != nil {
			t.Fatal(err)
		}
		if err := write(5); err != nil {
			t.Fatal(err)
		}
		acting("1")
		c.now.Add(int64(time.Second))
		if err := write(4); (err == nil) != off {
			t.Errorf("off %v: a stale write: %v", off, err)
		}
		stale, violations := "1", "0"
		if off {
			violations = "1"
			acting("2")
		} else {
			acting("1")
		}
		if got := s.metric(`tenure_fence_rejected_total{reason="stale",sink="ledger"}`); got != stale {
			t.Errorf("off %v: refused %s, want %s", off, got, stale)
		}
		if got := s.metric("tenure_split_brain_detected_total"); got != violations {
			t.Errorf("off %v: violations %s, want %s", off, got, violations)
		}
		c.now.Add(int64(2 * time.Second))
		acting("0")
		r, err := s.Rejections(ctx, "", 0)
		if err != nil || r.Total != 1 || r.Items[0].Token != 4 || r.Items[0].CurrentToken != 5 || r.Items[0].Applied != off {
			t.Errorf("off %v: rejections %+v, %v", off, r, err)
		}
		for _, path := range []string{"/healthz", "/v1/resources/none", "/nothing", "/metrics"} {
			resp, _ := s.send("GET", path, "")
			if got := resp.Header.Get(api.HeaderFencing) == "off"; got != off {
				t.Errorf("off %v: %s is marked %v", off, path, got)
			}
		}
		if err := s.Healthy(ctx); err != nil {
			t.Error(err)
		}
	}
}

// With fencing off the ledger trusts a leader's range, so numbers are handed out twice, as
// the experiments show.
func TestUnfencedReusesNumbers(t *testing.T) {
	s := serveHere(t, ledger.Config{Unfenced: true})
	for _, token := range []fence.Token{5, 4} {
		r, err := s.Allocate(t.Context(), "r", at(token), api.SequenceWrite{Name: "ids", First: 1, Last: 3})
		if err != nil || r.First != 1 {
			t.Errorf("token %d: %+v, %v", token, r, err)
		}
	}
	if p, err := s.Allocations(t.Context(), "r", "ids", "", 0); err != nil || len(p.Items) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
}

// The number of resources is limited. Existing ones still work, and a refused one leaves no
// row.
func TestResourcesAreBounded(t *testing.T) {
	s := serveHere(t, ledger.Config{Resources: 2})
	ctx := t.Context()
	for i, want := range []error{nil, nil, api.ErrTooManyResources} {
		if err := s.Seal(ctx, fmt.Sprint("r", i), at(1)); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("resource %d: %v", i, err)
		}
	}
	if err := s.Seal(ctx, "r0", at(2)); err != nil {
		t.Error(err)
	}
	if p, err := s.Resources(ctx, "", 0); err != nil || len(p.Items) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
}

// If a ledger is down, reads are unavailable, and so are writes that certainly were not sent.
// If it stops answering, the outcome is unknown.
func TestClientWithoutLedger(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{URL: "http://" + ln.Addr().String(), Timeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Seal(t.Context(), "r", at(1)); !errors.Is(err, api.ErrUnknown) {
		t.Errorf("a silent ledger: %v", err)
	}
	if _, err := c.Resource(t.Context(), "r"); !errors.Is(err, api.ErrUnavailable) || errors.Is(err, api.ErrUnknown) {
		t.Errorf("reading from a silent ledger: %v", err)
	}
	_ = ln.Close()
	c.Close()
	if err := c.Seal(t.Context(), "r", at(1)); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("no ledger: %v", err)
	}
	var invalid *fence.InvalidError
	if err := c.Seal(t.Context(), "r", at(0)); !errors.As(err, &invalid) {
		t.Errorf("no stamp: %v", err)
	}
	if _, err := client.New(client.Config{URL: "127.0.0.1:7420"}); err == nil {
		t.Error("an address is taken for a URL")
	}
}
