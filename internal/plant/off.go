//go:build !planted

package plant

// Enabled reports whether this build can plant bugs.
const Enabled = false

// Set is an empty set: nothing can be planted.
type Set struct{}

// Has returns false, which the compiler knows.
func (Set) Has(Bug) bool { return false }

// Of plants nothing.
func Of(...Bug) Set { return Set{} }
