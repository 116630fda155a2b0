//go:build !unix

package servertest

// lockFile does without: nothing is installed there.
func lockFile(string) (unlock func(), err error) { return func() {}, nil }
