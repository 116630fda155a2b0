//go:build !linux

package child

import "os/exec"

// DieWithParent does nothing: programs end when their input ends.
func DieWithParent(*exec.Cmd) {}

// Paused is not supported here.
func Paused(int) bool { return true }
