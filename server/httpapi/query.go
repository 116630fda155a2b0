package httpapi

import (
	"iter"
	"net/url"
	"strings"
)

// Query yields the parameters of a URL in order, as URL.Query has them, without making a map:
// every request needs them more than once.
func Query(u *url.URL) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for rest := u.RawQuery; rest != ""; {
			var part string
			part, rest, _ = strings.Cut(rest, "&")
			if part == "" || strings.Contains(part, ";") {
				continue
			}
			name, value, _ := strings.Cut(part, "=")
			name, nameErr := url.QueryUnescape(name)
			value, valueErr := url.QueryUnescape(value)
			if nameErr == nil && valueErr == nil && !yield(name, value) {
				return
			}
		}
	}
}

// Parameter returns the first value of a parameter, and whether there is one.
func Parameter(u *url.URL, name string) (string, bool) {
	for n, value := range Query(u) {
		if n == name {
			return value, true
		}
	}
	return "", false
}
