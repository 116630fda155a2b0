//go:build !linux

package advise

// ThisClock returns nothing on this system.
func ThisClock() Clock { return Clock{} }

// Throttled returns 0 on this system.
func Throttled() int64 { return 0 }
