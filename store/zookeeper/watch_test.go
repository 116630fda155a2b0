package zookeeper

import "testing"

// Names of changes have a number, which may be negative; others are not taken for changes.
func TestNumber(t *testing.T) {
	for name, want := range map[string]int32{"c0000000007": 7, "/tenure/.changes/c0000000128": 128, "c-2147483648": -2147483648} {
		if n, err := number(name); err != nil || n != want {
			t.Errorf("%q: %d, %v", name, n, err)
		}
	}
	for _, name := range []string{"", "c", "x1", "c12345678901"} {
		if n, err := number(name); err == nil {
			t.Errorf("%q: %d", name, n)
		}
	}
}
