//go:build !linux

package engine

import "testing"

const readOnly = 0

func mountTmpfs(*testing.T, string, string, uintptr) error { return errNoRoot }
