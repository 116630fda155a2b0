//go:build planted

package plant

// Enabled reports whether this build can plant bugs.
const Enabled = true

// Set is the set of planted bugs.
type Set struct{ bits [2]uint64 }

// Has reports whether the bug is planted.
func (s Set) Has(b Bug) bool { return s.bits[b/64]&(1<<(b%64)) != 0 }

// Of plants the bugs.
func Of(bugs ...Bug) Set {
	var s Set
	for _, b := range bugs {
		s.bits[b/64] |= 1 << (b % 64)
	}
	return s
}
