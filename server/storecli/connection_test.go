package storecli

import (
	"strings"
	"testing"
)

// The remedy for a missing service names the host and the flag to use.
func TestNoServiceElsewhere(t *testing.T) {
	for store, want := range map[string]string{
		"http://10.0.0.1:7400":   "start one there with `tenure serve`,",
		"http://localhost:7401":  "start one with `tenure serve --listen=localhost:7401`,",
		"http://[::1]:7400,b:80": "start one with `tenure serve --listen=[::1]:7400`,",
		DefaultStore:             "start one with `tenure serve`,",
	} {
		at, err := (&Connection{Store: store}).Target()
		if got := at.remedy(); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %q, %v", store, got, err)
		}
	}
}
