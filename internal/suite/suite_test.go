package suite

import (
	"errors"
	"strings"
	"testing"
)

// A check that gives up ends there and keeps its errors. Any other panic goes through.
func TestObserve(t *testing.T) {
	var c Check
	c.Observe(func() {
		c.Errorf("first")
		c.Must("nothing", nil)
		c.Must("second", errors.New("cause"))
		c.Errorf("third")
	})
	if err := c.Err(); err == nil || err.Error() != "first\nsecond: cause" {
		t.Errorf("noted is %v", err)
	}
	defer func() {
		if r := recover(); r != "another" {
			t.Errorf("came through: %v", r)
		}
	}()
	c.Observe(func() { panic("another") })
}

// A declared broken promise that is broken is not a failure; one that is kept is.
func TestVerdict(t *testing.T) {
	wrong := errors.New("wrong")
	for _, tt := range []struct {
		seen       error
		broken, ok bool
		says       string
	}{
		{nil, false, true, ""}, {wrong, false, false, "wrong"}, {wrong, true, true, "as the sink says: wrong"}, {nil, true, false, "kept it"},
	} {
		if said, ok := Verdict("the sink", tt.seen, tt.broken); ok != tt.ok || !strings.HasSuffix(said, tt.says) {
			t.Errorf("%v, broken %v: %q, %v", tt.seen, tt.broken, said, ok)
		}
	}
}
