//go:build !planted

package plant

// Enabled says whether this build can plant bugs.
const Enabled = false

// Set is what is planted: nothing.
type Set struct{}

// Has is false, and known to be at compile time.
func (Set) Has(Bug) bool { return false }

// Of plants nothing.
func Of(...Bug) Set { return Set{} }
