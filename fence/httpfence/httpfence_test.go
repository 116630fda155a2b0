package httpfence_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/fence/httpfence"
)

// The sinks of this module can be asked by a Guard.
var _ httpfence.Marker = (*filefence.Dir)(nil)

func at(token fence.Token, seq uint64) fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "billing", Token: token, Seq: seq}
}

func headers(s fence.Stamp) http.Header {
	h := make(http.Header)
	if err := httpfence.Format(s, h.Set); err != nil {
		panic(err)
	}
	return h
}

// marked is a sink with a mark that the guard can read.
type marked struct {
	mark fence.Mark
	err  error
}

func (m marked) Mark(context.Context) (fence.Mark, error) { return m.mark, m.err }

// ask sends a request with these headers through a guard, over loopback, and returns the
// stamp that the handler got, if it was called.
func ask(t *testing.T, g httpfence.Guard, h http.Header) (status int, header http.Header, body []byte, handed *fence.Stamp) {
	t.Helper()
	server := httptest.NewServer(g.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if s, ok := httpfence.FromContext(r.Context()); ok {
			handed = &s
		}
	})))
	defer server.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, h)
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, body, handed
}

// The headers are a valid stamp, or the request is refused with a short answer that says what
// is wrong, and the handler is not called.
func TestWire(t *testing.T) {
	huge := strings.Repeat("9", 200_000)
	for _, tt := range []struct {
		name   string
		change map[string][]string // changes of a valid stamp; nil removes a header
		status int
		code   string
		detail string
	}{
		{"good", nil, 200, "", ""},
		{"seq 0", map[string][]string{"Fencing-Seq": {"0"}}, 200, "", ""},
		{"no seq", map[string][]string{"Fencing-Seq": nil}, 200, "", ""},
		{"largest", map[string][]string{"Fencing-Token": {"9007199254740991"}, "Fencing-Seq": {"9007199254740991"}}, 200, "", ""},
		{"no stamp", map[string][]string{"Fencing-Token": nil, "Fencing-Seq": nil, "Fencing-Group": nil, "Fencing-Deployment": nil}, 428, "missing", "are missing"},
		{"no token", map[string][]string{"Fencing-Token": nil}, 400, "invalid", "invalid token: missing"},
		{"no group", map[string][]string{"Fencing-Group": nil}, 400, "invalid", "invalid Fencing-Group: 1 to 255 bytes"},
		{"no deployment", map[string][]string{"Fencing-Deployment": nil}, 400, "invalid", "invalid Fencing-Deployment: 1 to 255 bytes"},
		{"only seq", map[string][]string{"Fencing-Token": nil, "Fencing-Group": nil, "Fencing-Deployment": nil}, 400, "invalid", "Fencing-Deployment"},
		{"empty token", map[string][]string{"Fencing-Token": {""}}, 400, "invalid", "invalid token: missing"},
		{"zero", map[string][]string{"Fencing-Token": {"0"}}, 400, "invalid", "from 1 to 2^53-1"},
		{"negative", map[string][]string{"Fencing-Token": {"-1"}}, 400, "invalid", "decimal digits only"},
		{"fraction", map[string][]string{"Fencing-Token": {"1.5"}}, 400, "invalid", "decimal digits only"},
		{"2^53+1", map[string][]string{"Fencing-Token": {"9007199254740993"}}, 400, "invalid", "at most 2^53-1"},
		{"largest int", map[string][]string{"Fencing-Token": {"9223372036854775807"}}, 400, "invalid", "from 1 to 2^53-1"},
		{"words", map[string][]string{"Fencing-Token": {"MAX_INT"}}, 400, "invalid", "decimal digits only"},
		{"list", map[string][]string{"Fencing-Token": {"41, 42"}}, 400, "invalid", "decimal digits only"},
		{"huge", map[string][]string{"Fencing-Token": {huge}}, 400, "invalid", "(200000 bytes)"},
		{"twice", map[string][]string{"Fencing-Token": {"42", "42"}}, 400, "invalid", `invalid Fencing-Token "2 values": exactly one`},
		{"two groups", map[string][]string{"Fencing-Group": {"billing", "mail"}}, 400, "invalid", "exactly one"},
		{"two deployments", map[string][]string{"Fencing-Deployment": {"prod", "prod"}}, 400, "invalid", "exactly one"},
		{"two seqs", map[string][]string{"Fencing-Seq": {"1", "2"}}, 400, "invalid", "exactly one"},
		{"seq negative", map[string][]string{"Fencing-Seq": {"-1"}}, 400, "invalid", `invalid seq "-1"`},
		{"seq empty", map[string][]string{"Fencing-Seq": {""}}, 400, "invalid", "invalid seq"},
		{"seq 2^53", map[string][]string{"Fencing-Seq": {"9007199254740992"}}, 400, "invalid", "invalid seq"},
		{"seq 00", map[string][]string{"Fencing-Seq": {"00"}}, 400, "invalid", "invalid seq"},
		{"group with a space", map[string][]string{"Fencing-Group": {"bil ling"}}, 400, "invalid", "visible ASCII"},
		{"group not ASCII", map[string][]string{"Fencing-Group": {"büro"}}, 400, "invalid", "visible ASCII"},
		{"group too long", map[string][]string{"Fencing-Group": {strings.Repeat("g", 256)}}, 400, "invalid", "(256 bytes)"},
		{"group longest", map[string][]string{"Fencing-Group": {strings.Repeat("g", 255)}}, 200, "", ""},
	} {
		h := headers(at(42, 7))
		for name, values := range tt.change {
			h[name] = values
		}
		status, header, body, handed := ask(t, httpfence.Guard{}, h)
		if status != tt.status || (handed != nil) != (status == 200) {
			t.Errorf("%s: %d, the handler got %v: %s", tt.name, status, handed, body)
			continue
		}
		if status == 200 {
			continue
		}
		var p httpfence.Problem
		if err := json.Unmarshal(body, &p); err != nil || p.Code != tt.code || p.Status != status || p.Retryable || !strings.Contains(p.Detail, tt.detail) || len(body) > 2000 {
			t.Errorf("%s: %s, %v", tt.name, body, err)
		}
		if got := header.Get("Content-Type"); got != "application/problem+json" {
			t.Errorf("%s: the type is %s", tt.name, got)
		}
	}
	if _, _, _, handed := ask(t, httpfence.Guard{}, headers(at(42, 7))); handed == nil || *handed != at(42, 7) {
		t.Errorf("the handler got %v", handed)
	}
}

// A token of ten megabytes is refused, by the server or by the guard, and the next valid
// request is served.
func TestTenMegabytes(t *testing.T) {
	h := headers(at(42, 0))
	h.Set(httpfence.HeaderToken, strings.Repeat("9", 10<<20))

	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPut, "/", http.NoBody)
	r.Header = h
	httpfence.Guard{}.Wrap(http.NotFoundHandler()).ServeHTTP(w, r)
	if w.Code != http.StatusBadRequest || w.Body.Len() > 2000 || !strings.Contains(w.Body.String(), "10485760 bytes") {
		t.Errorf("%d, %d bytes", w.Code, w.Body.Len())
	}

	server := httptest.NewServer(httpfence.Guard{}.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer server.Close()
	for _, h := range []http.Header{h, headers(at(42, 0))} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h
		resp, err := server.Client().Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		honest := len(h.Get(httpfence.HeaderToken)) < 100
		if served := err == nil && resp.StatusCode == http.StatusOK; served != honest {
			t.Errorf("honest %v: %v, %v", honest, resp, err)
		}
	}
}

// A guard with a mark refuses early, with both tokens in the answer. If it cannot read the
// mark, it refuses the request.
func TestGuardMark(t *testing.T) {
	m := fence.Mark{Deployment: "prod", Group: "billing", Token: 42, Seq: 3, Digest: "d"}
	foreign := at(42, 0)
	foreign.Group = "mail"
	for _, tt := range []struct {
		name   string
		mark   marked
		stamp  fence.Stamp
		status int
		code   string
	}{
		{"nobody was here", marked{}, at(41, 0), 200, ""},
		{"same", marked{mark: m}, at(42, 0), 200, ""},
		{"a strict retry", marked{mark: m}, at(42, 3), 200, ""},
		{"newer", marked{mark: m}, at(43, 0), 200, ""},
		{"stale", marked{mark: m}, at(41, 9), 412, "stale"},
		{"slip", marked{mark: m}, at(43+fence.MaxJump, 0), 409, "slip"},
		{"foreign", marked{mark: m}, foreign, 409, "foreign"},
		{"unreadable", marked{err: errors.New("dial tcp 10.0.0.7: secret")}, at(42, 0), 503, "unavailable"},
		{"unreadable, as a refusal", marked{err: fence.ErrRefused}, at(42, 0), 503, "unavailable"},
	} {
		status, header, body, handed := ask(t, httpfence.Guard{Mark: tt.mark}, headers(tt.stamp))
		if status != tt.status || (handed != nil) != (status == 200) {
			t.Errorf("%s: %d, %s; the handler got %v", tt.name, status, body, handed)
		}
		if status == 200 {
			continue
		}
		var p map[string]any
		if err := json.Unmarshal(body, &p); err != nil || p["code"] != tt.code || p["retryable"] != (status == 503) || p["status"] != float64(status) || p["type"] == "" || p["title"] == "" {
			t.Errorf("%s: %s, %v", tt.name, body, err)
		}
		if status == 503 {
			if header.Get("Retry-After") == "" || bytes.Contains(body, []byte("secret")) {
				t.Errorf("%s: %v %s", tt.name, header, body)
			}
		} else if p["token"] != float64(tt.stamp.Token) || p["current_token"] != float64(42) {
			t.Errorf("%s: %s", tt.name, body)
		}
	}
}

// The handler gets the stamp that the verifier returned. A refused stamp does not reach the
// handler.
func TestVerify(t *testing.T) {
	answer := func(s fence.Stamp, err error) fence.Verifier {
		return func(_ context.Context, raw []byte) (fence.Stamp, error) {
			var got fence.Stamp
			if json.Unmarshal(raw, &got) != nil || got != at(42, 7) {
				t.Errorf("the verifier was given %s", raw)
			}
			return s, err
		}
	}
	for _, tt := range []struct {
		name   string
		verify fence.Verifier
		status int
	}{
		{"believed", answer(at(41, 7), nil), 200},
		{"no", answer(fence.Stamp{}, errors.New("secret")), 400},
		{"no, in words of ours", answer(fence.Stamp{}, &fence.InvalidError{Field: "signature", Rule: "wrong"}), 400},
		{"cannot tell", answer(fence.Stamp{}, fmt.Errorf("%w: secret", httpfence.ErrUnavailable)), 503},
		{"no stamp, no error", answer(fence.Stamp{}, nil), 400},
	} {
		status, _, body, handed := ask(t, httpfence.Guard{Verify: tt.verify}, headers(at(42, 7)))
		if status != tt.status || bytes.Contains(body, []byte("secret")) || (status == 200) != (handed != nil) || handed != nil && *handed != at(41, 7) {
			t.Errorf("%s: %d %s, handed %v", tt.name, status, body, handed)
		}
	}
}

// A refusal is the same error on both sides of the connection. No other response is taken for
// a refusal.
func TestRefusal(t *testing.T) {
	m := fence.Mark{Deployment: "prod", Group: "billing", Token: 42, Seq: 3}
	withDigest := m
	withDigest.Digest = "d"
	over := func(t *testing.T, handler http.HandlerFunc) (status int, text string, refusal error) {
		t.Helper()
		server := httptest.NewServer(handler)
		defer server.Close()
		resp, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		refusal = httpfence.Refusal(resp)
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body), refusal
	}
	for status, errs := range map[int][]error{
		412: {&fence.StaleError{Stamp: at(41, 0), Mark: m}, &fence.StaleError{Stamp: at(42, 2), Mark: m}},
		409: {&fence.SlipError{Stamp: at(fence.MaxToken, 0), Mark: m}, &fence.ForeignError{Stamp: fence.Stamp{Deployment: "x", Group: "y", Token: 1}, Mark: m}, &fence.CloneError{Stamp: at(42, 3), Digest: "e", Mark: withDigest}},
		400: {&fence.InvalidError{Field: "token", Value: "x", Rule: "y"}},
		428: {&httpfence.MissingError{}},
	} {
		for _, want := range errs {
			got, text, refusal := over(t, func(w http.ResponseWriter, _ *http.Request) {
				httpfence.WriteError(w, fmt.Errorf("sink: %w", want))
			})
			if got != status || !same(refusal, want) || !errors.Is(refusal, fence.ErrRefused) || !strings.Contains(text, `"code"`) {
				t.Errorf("%#v came back as %d, %#v: %s", want, got, refusal, text)
			}
		}
	}
	for name, handler := range map[string]http.HandlerFunc{
		"success":     func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") },
		"no problem":  func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "stale", http.StatusPreconditionFailed) },
		"our failure": func(w http.ResponseWriter, _ *http.Request) { httpfence.WriteError(w, errors.New("secret")) },
		"somebody else's": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", httpfence.ContentType)
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"status":404,"code":"stale"}`)
		},
		"too long": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", httpfence.ContentType)
			w.WriteHeader(http.StatusPreconditionFailed)
			_, _ = io.WriteString(w, `{"status":412,"code":"stale","detail":"`+strings.Repeat("x", 1<<20)+`"}`)
		},
	} {
		status, text, refusal := over(t, handler)
		if refusal != nil || text == "" || strings.Contains(text, "secret") {
			t.Errorf("%s: %d is taken for %v: %.100s", name, status, refusal, text)
		}
	}
	if p := httpfence.ProblemOf(errors.New("secret")); p.Status != 500 || p.Code != "internal" || p.Retryable {
		t.Errorf("an error of the server: %+v", p)
	}
}

// over is a term that has ended.
type over struct{ fixed }

var errOver = errors.New("the term is over")

func (over) Check() error { return errOver }

// closing records that it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// The stamp is that of the request's term, else of the client's. Without a term, after its
// end, or if the stamp cannot be sent unchanged, nothing is sent.
func TestTransport(t *testing.T) {
	var got []http.Header
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = append(got, r.Header) }))
	defer server.Close()
	spaced := at(42, 0)
	spaced.Group = "billing "
	counting := term(44)
	for _, tt := range []struct {
		name string
		term httpfence.Term
		ctx  func(context.Context) context.Context
		want *fence.Stamp
		err  error
	}{
		{name: "of the client", term: fixed(at(42, 7)), want: ptr(at(42, 7))},
		{name: "of the request", term: fixed(at(42, 7)), ctx: func(ctx context.Context) context.Context { return httpfence.WithTerm(ctx, fixed(at(43, 0))) }, want: ptr(at(43, 0))},
		{name: "passed on", term: over{}, ctx: func(ctx context.Context) context.Context { return httpfence.WithStamp(ctx, at(40, 1)) }, want: ptr(at(40, 1))},
		{name: "seq", term: counting, ctx: func(ctx context.Context) context.Context { return httpfence.WithSeq(ctx, 9) }, want: ptr(counting.Stamp().WithSeq(9))},
		{name: "received is not passed on", term: fixed(at(42, 7)), ctx: func(ctx context.Context) context.Context { return httpfence.NewContext(ctx, at(1, 1)) }, want: ptr(at(42, 7))},
		{name: "none", ctx: func(ctx context.Context) context.Context { return httpfence.NewContext(ctx, at(1, 1)) }},
		{name: "over", term: over{fixed(at(42, 0))}, err: errOver},
		{name: "over in the request", term: fixed(at(42, 0)), ctx: func(ctx context.Context) context.Context { return httpfence.WithTerm(ctx, over{}) }, err: errOver},
		{name: "no stamp", term: fixed{}, err: fence.ErrRefused},
		{name: "a space at the end", term: fixed(spaced), err: fence.ErrRefused},
	} {
		got = nil
		ctx := t.Context()
		if tt.ctx != nil {
			ctx = tt.ctx(ctx)
		}
		body := &closing{Reader: strings.NewReader("body")}
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header[httpfence.HeaderToken] = []string{"1", "2"}
		req.Header.Set(httpfence.HeaderSeq, "99")
		before := req.Header.Clone()
		resp, err := (&httpfence.Transport{Term: tt.term}).RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		switch {
		case tt.want == nil:
			if err == nil || len(got) != 0 || !body.closed || tt.err != nil && !errors.Is(err, tt.err) {
				t.Errorf("%s: %v, sent %d, body closed %v", tt.name, err, len(got), body.closed)
			}
		case err != nil || len(got) != 1:
			t.Errorf("%s: %v, sent %d", tt.name, err, len(got))
		default:
			if s, err := httpfence.Parse(got[0].Values); err != nil || s != *tt.want {
				t.Errorf("%s: sent %v, %v; want %v", tt.name, s, err, *tt.want)
			}
		}
		if !reflect.DeepEqual(req.Header, before) {
			t.Errorf("%s: the caller's request was changed: %v", tt.name, req.Header)
		}
	}
}

// same compares errors with all their fields.
func same(a, b any) bool { return reflect.DeepEqual(a, b) }

func ptr[T any](v T) *T { return &v }

// Every parsed stamp is valid and is formatted as it came; every refusal is short.
func FuzzParse(f *testing.F) {
	f.Add("prod", "billing", "42", "7", true)
	f.Add("prod", "billing", "42", "", false)
	f.Add("", "ü", "1.5", "-1", true)
	f.Add("a b", "c", "9007199254740992", "0", true)
	f.Fuzz(func(t *testing.T, deployment, group, token, seq string, hasSeq bool) {
		h := http.Header{httpfence.HeaderDeployment: {deployment}, httpfence.HeaderGroup: {group}, httpfence.HeaderToken: {token}}
		if hasSeq {
			h[httpfence.HeaderSeq] = []string{seq}
		}
		s, err := httpfence.Parse(h.Values)
		if err != nil {
			if !errors.Is(err, fence.ErrRefused) || len(err.Error()) > 2000 {
				t.Fatalf("%q: %v", h, err)
			}
			return
		}
		back := make(http.Header)
		if err := httpfence.Format(s, back.Set); err != nil {
			t.Fatalf("%q was read as %v, which cannot be sent: %v", h, s, err)
		}
		if seq == "0" {
			h.Del(httpfence.HeaderSeq)
		}
		if !reflect.DeepEqual(h, back) {
			t.Fatalf("%q is sent again as %q", h, back)
		}
	})
}
