package kubernetes

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// Keys are readable as names of Leases.
func TestNames(t *testing.T) {
	for key, want := range map[string]string{
		"meta":                  "meta",
		"record/billing-eu":     "record.billing-eu",
		"record/a_b":            "record.a.x5f.b",
		"record/a.b":            "record.a.x2e.b",
		"record/a-":             "record.a.x2d",
		"record/xbeef":          "record.x2f7862656566",
		"record/xbee":           "record.xbee",
		"history/orders-1/000a": "history.orders-1.000a",
		"a//b":                  "a.x2f2f.b",
		"a/":                    "a.x2f",
		"/a":                    "x2f.a",
		"Ä":                     "xc384",
	} {
		if got := encodeKey(key); got != want || decodeKey(got) != key {
			t.Errorf("%q becomes %q, want %q, and %q again", key, got, want, decodeKey(got))
		}
	}
}

// Every key has its own name, a valid one, and can be read from it. The longest group fits.
func TestNamesReversible(t *testing.T) {
	const alphabet = "ax09-._/fA\xff"
	seen := map[string]string{}
	for range 200_000 {
		n := 1 + rand.IntN(8)
		var b strings.Builder
		for range n {
			b.WriteByte(alphabet[rand.IntN(len(alphabet))])
		}
		key := b.String()
		name := encodeKey(key)
		if !dnsName.MatchString(name) || decodeKey(name) != key {
			t.Fatalf("%q becomes %q, and that %q", key, name, decodeKey(name))
		}
		if other, ok := seen[name]; ok && other != key {
			t.Fatalf("%q and %q have the name %q", key, other, name)
		}
		seen[name] = key
	}
	longest := "history/" + strings.Repeat("a_", 31) + "a/0fff"
	if n := len(encodeKey(longest)); n > maxName-maxPrefix-1 {
		t.Errorf("the longest key takes %d bytes", n)
	}
}
