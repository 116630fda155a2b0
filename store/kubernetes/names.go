package kubernetes

import (
	"encoding/hex"
	"regexp"
	"strings"
)

// Names of Leases are DNS names: labels of a-z, 0-9 and - that are joined with dots. A key is
// split into runs that are such labels, and into other bytes. The other bytes become a label of
// x and their hexadecimal digits. Between two adjacent runs there is a slash:
//
//	record/billing-eu    record.billing-eu
//	record/a_b           record.a.x5f.b
var (
	run   = regexp.MustCompile(`[a-z0-9]([-a-z0-9]*[a-z0-9])?`)
	bytes = regexp.MustCompile(`^x([0-9a-f]{2})+$`)
)

// encodeKey turns a key into a DNS name.
func encodeKey(key string) string {
	var labels []string
	other := "" // bytes since the last run
	flush := func(beforeRun bool) {
		if other != "" && (other != "/" || len(labels) == 0 || !beforeRun) {
			labels = append(labels, "x"+hex.EncodeToString([]byte(other)))
		}
		other = ""
	}
	at := 0
	for _, found := range run.FindAllStringIndex(key, -1) {
		text := key[found[0]:found[1]]
		other += key[at:found[0]]
		if at = found[1]; bytes.MatchString(text) {
			other += text // it looks like an encoded label
			continue
		}
		flush(true)
		labels = append(labels, text)
	}
	other += key[at:]
	flush(false)
	return strings.Join(labels, ".")
}

// decodeKey is the reverse of encodeKey.
func decodeKey(name string) string {
	var key strings.Builder
	afterRun := false
	for label := range strings.SplitSeq(name, ".") {
		if bytes.MatchString(label) {
			b, _ := hex.DecodeString(label[1:]) // matched
			key.Write(b)
			afterRun = false
			continue
		}
		if afterRun {
			key.WriteByte('/')
		}
		key.WriteString(label)
		afterRun = true
	}
	return key.String()
}

// kindOf is the part of a key before the first slash.
func kindOf(key string) string {
	kind, _, _ := strings.Cut(key, "/")
	return kind
}
