//go:build !linux

package disturb

import "errors"

// LowerPriority needs Linux.
func LowerPriority(int, int) (int, error) {
	return 0, errors.New("lowering a process's priority needs Linux")
}
