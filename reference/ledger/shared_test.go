package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// Shared records need no leader: their version protects them. A version is not used again
// after a record was deleted and created again.
func TestShared(t *testing.T) {
	onBoth(t, func(t *testing.T, db string) {
		s := serveHere(t, ledger.Config{DB: db, Shared: 2})
		ctx := t.Context()
		put := func(key, v string, version *uint64, want uint64) {
			t.Helper()
			if got, err := s.PutShared(ctx, "prod", "s p", key, value(v), version); err != nil || got != want {
				t.Errorf("%s=%s has version %d, %v, want %d", key, v, got, err, want)
			}
		}
		conflict := func(err error, want api.VersionError) {
			t.Helper()
			var version *api.VersionError
			if !errors.As(err, &version) || *version != want {
				t.Errorf("got %v, want %+v", err, want)
			}
		}
		zero, one, two, three := uint64(0), uint64(1), uint64(2), uint64(3)
		put("k/1", "a", &zero, 1)
		_, err := s.PutShared(ctx, "prod", "s p", "k/1", value("b"), &zero)
		conflict(err, api.VersionError{Space: "s p", Key: "k/1", Version: 0, Current: 1})
		put("k/1", "b", &one, 2)
		_, err = s.PutShared(ctx, "prod", "s p", "k/1", value("c"), &one)
		conflict(err, api.VersionError{Space: "s p", Key: "k/1", Version: 1, Current: 2})
		put("k/1", "c", nil, 3)
		_, err = s.PutShared(ctx, "prod", "s p", "other", value("c"), &one)
		conflict(err, api.VersionError{Space: "s p", Key: "other", Version: 1})
		if r, err := s.Shared(ctx, "prod", "s p", "k/1"); err != nil || r.Space != "s p" || r.Key != "k/1" || r.Version != 3 || string(r.Value) != `"c"` || r.UpdatedMS == 0 {
			t.Errorf("the record is %+v, %v", r, err)
		}
		if _, err := s.Shared(ctx, "prod", "other", "k/1"); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("in another space: %v", err)
		}
		put("k2", "x", nil, 1)
		if _, err := s.PutShared(ctx, "prod", "s p", "k3", value("x"), nil); !errors.Is(err, api.ErrTooManyRecords) {
			t.Errorf("one too many: %v", err)
		}
		conflict(s.DeleteShared(ctx, "prod", "s p", "k/1", &two), api.VersionError{Space: "s p", Key: "k/1", Version: 2, Current: 3})
		if err := s.DeleteShared(ctx, "prod", "s p", "k/1", &three); err != nil {
			t.Error(err)
		}
		if err := s.DeleteShared(ctx, "prod", "s p", "k/1", nil); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("deleted twice: %v", err)
		}
		put("k/1", "again", &zero, 4)
		if p, err := s.Resources(ctx, "", 0); err != nil || len(p.Items) != 0 {
			t.Errorf("shared records made resources: %+v, %v", p, err)
		}
		for outcome, want := range map[string]string{"ok": "6", "conflict": "4", "failed": "2"} {
			if got := s.metric(fmt.Sprintf("tenure_ledger_shared_writes_total{outcome=%q}", outcome)); got != want {
				t.Errorf("%s: %s, want %s", outcome, got, want)
			}
		}
	})
}

// If many callers increment a shared record by compare-and-set, no increment is lost.
func TestSharedCounter(t *testing.T) {
	onBoth(t, func(t *testing.T, db string) {
		s := serveHere(t, ledger.Config{DB: db})
		ctx := t.Context()
		const callers, each = 6, 5
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for done := 0; done < each; {
					r, err := s.Shared(ctx, "prod", "s", "count")
					n := 0
					if err == nil {
						err = json.Unmarshal(r.Value, &n)
					} else if errors.Is(err, api.ErrNotFound) {
						err = nil
					}
					if err != nil {
						t.Error(err)
						return
					}
					var version *api.VersionError
					switch _, err = s.PutShared(ctx, "prod", "s", "count", value(n+1), &r.Version); {
					case err == nil:
						done++
					case !errors.As(err, &version):
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		if r, err := s.Shared(ctx, "prod", "s", "count"); err != nil || string(r.Value) != fmt.Sprint(callers*each) || r.Version != callers*each {
			t.Errorf("the count is %+v, %v", r, err)
		}
	})
}

// Over HTTP the version is an ETag, and a condition that cannot be parsed is refused, not
// ignored.
func TestSharedHeaders(t *testing.T) {
	s := serveHere(t, ledger.Config{})
	const path = "/v1/shared/prod/s/k"
	for i, tt := range []struct {
		method, body, header string
		status               int
		code                 any
		etag                 string
	}{
		{"GET", "", "", 404, "not_found", ""},
		{"PUT", `{"value":1}`, `If-Match: "1"`, 412, "version_conflict", ""},
		{"PUT", `{"value":1}`, "If-None-Match: *", 200, nil, `"1"`},
		{"PUT", `{"value":2}`, "If-None-Match: *", 412, "version_conflict", ""},
		{"PUT", `{"value":2}`, `If-Match: "1"`, 200, nil, `"2"`},
		{"PUT", `{"value":3}`, `If-Match: "1"`, 412, "version_conflict", ""},
		{"PUT", `{"value":3}`, "", 200, nil, `"3"`},
		{"PUT", `{"value":4}`, `If-Match: W/"3"`, 400, "invalid_request", ""},
		{"PUT", `{"value":4}`, `If-Match: 3`, 400, "invalid_request", ""},
		{"PUT", `{"value":4}`, `If-Match: *`, 400, "invalid_request", ""},
		{"PUT", `{"value":4}`, `If-Match: "3", "4"`, 400, "invalid_request", ""},
		{"PUT", `{"value":4}`, `If-None-Match: "3"`, 400, "invalid_request", ""},
		{"PUT", `{"value":}`, "", 400, "bad_body", ""},
		{"PUT", `{}`, "", 400, "invalid_request", ""},
		{"PUT", `{"vlaue":1}`, "", 400, "bad_body", ""},
		{"PUT", ``, "", 400, "bad_body", ""},
		{"PUT", `{"value":"` + strings.Repeat("x", 200_000) + `"}`, "", 413, "body_too_large", ""},
		{"POST", `{"value":1}`, "", 405, "no_such_method", ""},
		{"GET", "", "", 200, nil, `"3"`},
		{"GET", "", `If-None-Match: "3"`, 304, nil, `"3"`},
		{"GET", "", `If-None-Match: "2"`, 200, nil, `"3"`},
		{"DELETE", "", `If-Match: "2"`, 412, "version_conflict", ""},
		{"DELETE", "", `If-Match: "3"`, 200, nil, ""},
		{"DELETE", "", "", 404, "not_found", ""},
	} {
		headers := []string{}
		if tt.header != "" {
			headers = append(headers, tt.header)
		}
		resp, v := s.send(tt.method, path, tt.body, headers...)
		if resp.StatusCode != tt.status || v["code"] != tt.code || resp.Header.Get("ETag") != tt.etag {
			t.Errorf("%d: %s %.30s %s: %d %v %v, want %d %v %s", i, tt.method, tt.body, tt.header, resp.StatusCode, v, resp.Header, tt.status, tt.code, tt.etag)
		}
		if tt.status == http.StatusPreconditionFailed && v["current_version"] == nil {
			t.Errorf("%d: the conflict does not say the version: %v", i, v)
		}
	}
	for _, path := range []string{"/v1/shared/prod/%00/k", "/v1/shared/prod/s/%ff", "/v1/shared/prod/s/%2e%2e", "/v1/shared/prod/" + strings.Repeat("x", 300) + "/k"} {
		if resp, v := s.send("PUT", path, `{"value":1}`); resp.StatusCode != http.StatusBadRequest || v["code"] != "invalid_request" {
			t.Errorf("PUT %.40s: %d %v", path, resp.StatusCode, v)
		}
		if resp, v := s.send("GET", path, ""); resp.StatusCode != http.StatusNotFound || v["code"] != "not_found" {
			t.Errorf("GET %.40s: %d %v", path, resp.StatusCode, v)
		}
	}
}
