package store

import (
	"fmt"
	"strings"

	"github.com/tenurehq/tenure"
)

// maxName is the length of a DNS label, so that names fit everywhere.
const maxName = 63

const nameRule = "1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit"

// ValidName reports whether s may name a group or a candidate.
func ValidName(s string) bool {
	if len(s) == 0 || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case (c == '.' || c == '_' || c == '-') && i > 0:
		default:
			return false
		}
	}
	return true
}

// CheckGroup returns an ArgumentError unless the name may be a group's.
func CheckGroup(group string) error {
	if !ValidName(group) {
		return &ArgumentError{Field: "group", Value: group, Rule: nameRule}
	}
	return nil
}

// PrefixEnd ends the prefix of a group whose record may be removed.
const PrefixEnd = "--"

// Prefix returns the prefix of a group whose record may be removed: what is before the first "--",
// as in "tenants--42". There is a letter or digit on each side. Other groups have none. See Retirer.
func Prefix(group string) (string, bool) {
	prefix, name, _ := strings.Cut(group, PrefixEnd)
	if prefix == "" || strings.HasSuffix(prefix, ".") || strings.HasSuffix(prefix, "_") || !ValidName(prefix) || !ValidName(name) {
		return "", false
	}
	return prefix, true
}

// CheckCandidate returns an ArgumentError unless c may stand.
func CheckCandidate(c tenure.Candidate) error {
	if !ValidName(c.ID) {
		return &ArgumentError{Field: "candidate id", Value: c.ID, Rule: nameRule}
	}
	const maxAddress = 512
	if len(c.Address) > maxAddress {
		return &ArgumentError{Field: "candidate address", Value: c.Address, Rule: fmt.Sprintf("at most %d bytes, not %d", maxAddress, len(c.Address))}
	}
	return CheckMetadata("candidate metadata", c.Metadata)
}

// CheckMetadata bounds a map of small values.
func CheckMetadata(field string, m map[string]string) error {
	n := 0
	for k, v := range m {
		n += len(k) + len(v)
	}
	if n > MaxMetadata {
		return &ArgumentError{Field: field, Rule: fmt.Sprintf("at most %d bytes in all, not %d", MaxMetadata, n)}
	}
	return nil
}

// Scope is a set of groups: names, or beginnings that end in "*". "*" alone is
// every group.
type Scope []string

// Covers reports whether the group is in the set.
func (s Scope) Covers(group string) bool {
	for _, p := range s {
		if p == group {
			return true
		}
		if begin, ok := strings.CutSuffix(p, "*"); ok && strings.HasPrefix(group, begin) {
			return true
		}
	}
	return false
}

// Single reports whether the set is one group.
func (s Scope) Single() bool { return len(s) == 1 && !strings.HasSuffix(s[0], "*") }

// Overlaps reports whether some group can be in both sets.
func (s Scope) Overlaps(o Scope) bool {
	for _, p := range s {
		begin, open := strings.CutSuffix(p, "*")
		for _, q := range o {
			other, otherOpen := strings.CutSuffix(q, "*")
			switch {
			case p == q,
				open && strings.HasPrefix(other, begin),
				otherOpen && strings.HasPrefix(begin, other):
				return true
			}
		}
	}
	return false
}

// Validate returns an ArgumentError unless the scope names at least one group.
func (s Scope) Validate() error {
	if len(s) == 0 {
		return &ArgumentError{Field: "scope", Rule: `names no group: give names, beginnings such as "shard-*", or "*"`}
	}
	if len(s) > MaxScope {
		return &ArgumentError{Field: "scope", Value: len(s), Rule: fmt.Sprintf("at most %d names: use a beginning such as \"shard-*\"", MaxScope)}
	}
	for _, p := range s {
		name, open := strings.CutSuffix(p, "*")
		if open && name == "" {
			continue
		}
		if !ValidName(name) {
			return &ArgumentError{Field: "scope", Value: p, Rule: nameRule + `, or such a beginning followed by "*"`}
		}
	}
	return nil
}

// InLine orders sessions as they stand in line: higher priority first, then
// older.
func InLine(a, b Session) int {
	switch {
	case a.Candidate.Priority != b.Candidate.Priority:
		if a.Candidate.Priority > b.Candidate.Priority {
			return -1
		}
		return 1
	case a.Opened != b.Opened:
		if a.Opened < b.Opened {
			return -1
		}
		return 1
	default:
		return strings.Compare(string(a.ID), string(b.ID))
	}
}
