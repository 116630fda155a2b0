package servertest

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// confine makes a program end with this process, and run as nobody if this one is root's:
// PostgreSQL refuses to run as root.
func confine(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if uid, gid, ok := nobody(); ok {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
}

// giveAway gives a folder to the user that confine runs programs as.
func giveAway(dir string) error {
	uid, gid, ok := nobody()
	if !ok {
		return nil
	}
	return os.Chown(dir, int(uid), int(gid))
}

func nobody() (uid, gid uint32, ok bool) {
	if os.Geteuid() != 0 {
		return 0, 0, false
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		return 65534, 65534, true
	}
	id := func(s string) uint32 {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return 65534
		}
		return uint32(n)
	}
	return id(u.Uid), id(u.Gid), true
}
