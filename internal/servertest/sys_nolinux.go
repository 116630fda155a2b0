//go:build !linux

package servertest

import "os/exec"

func confine(*exec.Cmd) {}

func giveAway(string) error { return nil }
