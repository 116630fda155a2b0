package consul_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/tenurehq/tenure/internal/servertest"
)

// api calls Consul's HTTP API without the driver, and returns what it answers.
func api(t *testing.T, s *servertest.Server, method, path string, body []byte) []byte {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL()+"/v1/"+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s: %s, %v", method, path, answer.Status, text, err)
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
