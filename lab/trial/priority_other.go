//go:build !linux

package trial

import "errors"

func lowerPriority(int, int) (int, error) {
	return 0, errors.New("lowering a process's priority needs Linux")
}
