//go:build unix

package lab

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup keeps the terminal's Ctrl-C from the program: the lab stops the fleet, in
// order.
func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

// hold takes the lock that says that a folder is in use, for as long as this process
// lives; false: another has it.
func hold(path string) (release func(), ok bool) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, false
	}
	return func() { _ = f.Close() }, true
}
