//go:build !linux

package experiment

import "errors"

func lowerPriority(int, int) (int, error) {
	return 0, errors.New("this system's priorities are not known here: run this experiment on Linux")
}
