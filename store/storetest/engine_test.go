package storetest

import "testing"

// Each promise has a name and a check of its own.
func TestPromises(t *testing.T) {
	seen := make(map[Promise]bool)
	for _, p := range promises() {
		if p.name == "" || p.check == nil || seen[p.name] {
			t.Errorf("promise %q is listed twice, or has no check", p.name)
		}
		seen[p.name] = true
	}
}
