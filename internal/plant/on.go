//go:build planted

package plant

// Enabled says whether this build can plant bugs.
const Enabled = true

// Set is what is planted.
type Set struct{ bits uint64 }

// Has reports whether the bug is planted.
func (s Set) Has(b Bug) bool { return s.bits&(1<<b) != 0 }

// Of plants the bugs.
func Of(bugs ...Bug) Set {
	var s Set
	for _, b := range bugs {
		s.bits |= 1 << b
	}
	return s
}
