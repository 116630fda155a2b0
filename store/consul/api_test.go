package consul_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/tenurehq/tenure/internal/servertest"
)

// call calls Consul's HTTP API without the driver.
func call(t *testing.T, s *servertest.Server, method, path, token string, body []byte) ([]byte, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL()+"/v1/"+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Consul-Token", token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	return text, err
}

// api is a call that must succeed.
func api(t *testing.T, s *servertest.Server, method, path string, body []byte) []byte {
	t.Helper()
	text, err := call(t, s, method, path, "", body)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// snapshot is "consul snapshot save", restore is "consul snapshot restore".
func snapshot(t *testing.T, s *servertest.Server) []byte {
	t.Helper()
	return api(t, s, http.MethodGet, "snapshot", nil)
}

func restore(t *testing.T, s *servertest.Server, backup []byte) {
	t.Helper()
	api(t, s, http.MethodPut, "snapshot", backup)
}
