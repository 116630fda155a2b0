package httpapi

import (
	"net/url"
	"reflect"
	"testing"
)

// Query yields what URL.Query has, for every text.
func FuzzQuery(f *testing.F) {
	for _, text := range []string{"", "a=1", "a=1&b=2&a=3", "a", "&&=x&", "%61=%20+", "a=%zz&b=1", "a;b=1&c=2", "a=b=c"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u := &url.URL{RawQuery: text}
		got := url.Values{}
		for name, value := range Query(u) {
			got.Add(name, value)
		}
		if want := u.Query(); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
		for name, values := range got {
			if v, ok := Parameter(u, name); !ok || v != values[0] {
				t.Errorf("%q: %q is %q, %v", text, name, v, ok)
			}
		}
	})
}
