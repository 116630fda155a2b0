//go:build !linux

package advise

// ThisClock knows nothing here.
func ThisClock() Clock { return Clock{} }

// Throttled is not known here.
func Throttled() int64 { return 0 }
