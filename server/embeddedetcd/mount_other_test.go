//go:build !linux

package embeddedetcd

import "testing"

const readOnly = 0

func mountTmpfs(*testing.T, string, string, uintptr) error { return errNoRoot }
