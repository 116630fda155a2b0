package keeper

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaces returns what to add to a new process, in the order in which to try it. An
// isolated keeper is the init of a pid namespace: when it dies, the kernel kills every
// process in it. That needs CAP_SYS_ADMIN, or a user namespace in which the user has it.
func namespaces(isolate bool) []func(*syscall.SysProcAttr) {
	if !isolate {
		return []func(*syscall.SysProcAttr){func(*syscall.SysProcAttr) {}}
	}
	pid := func(a *syscall.SysProcAttr) { a.Cloneflags |= unix.CLONE_NEWPID | unix.CLONE_NEWNS }
	user := func(a *syscall.SysProcAttr) {
		pid(a)
		a.Cloneflags |= unix.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
		a.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN} // to mount /proc
	}
	return []func(*syscall.SysProcAttr){pid, user}
}

// enterNamespace mounts the /proc of an isolated keeper's pid namespace. After that the
// thread that starts the command keeps no rights for it.
func enterNamespace() error {
	if os.Getpid() != 1 {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts to this namespace: %w", err)
	}
	if err := unix.Mount("proc", procDir, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", procDir, err)
	}
	return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
}

// outsideNumber finds the process with a number in its own pid namespace; 0: it has ended.
func outsideNumber(procs []proc, inside int) int {
	for _, p := range procs {
		text, _ := os.ReadFile(procDir + strconv.Itoa(p.pid) + "/status")
		_, numbers, _ := bytes.Cut(text, []byte("\nNSpid:"))
		numbers, _, _ = bytes.Cut(numbers, []byte("\n"))
		if fields := bytes.Fields(numbers); len(fields) > 1 && string(fields[len(fields)-1]) == strconv.Itoa(inside) {
			return p.pid
		}
	}
	return 0
}
