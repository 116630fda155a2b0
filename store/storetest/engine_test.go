package storetest

import (
	"errors"
	"testing"
)

// A promise that is named as broken must be seen broken, and every other one
// kept.
func TestVerdict(t *testing.T) {
	wrong := errors.New("wrong")
	for _, c := range []struct {
		seen   error
		broken bool
		ok     bool
	}{
		{nil, false, true},
		{wrong, false, false},
		{nil, true, false},
		{wrong, true, true},
	} {
		if said, ok := verdict(c.seen, c.broken); ok != c.ok || (said == "") != (c.seen == nil && !c.broken) {
			t.Errorf("seen %v, named as broken %v: %v, %q", c.seen, c.broken, ok, said)
		}
	}
}

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
