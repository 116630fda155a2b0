//go:build !linux

package enginetest

import "os/exec"

// dieWithParent is left to the end of the process's input.
func dieWithParent(*exec.Cmd) {}

func paused(int) bool { return true }
