package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// WholeTree: every descendant of the keeper is stopped.
const WholeTree = true

// becomeSubreaper makes this process the parent of every descendant whose parent ends.
func becomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	if _, ok := readProc(os.Getpid()); !ok {
		return fmt.Errorf("find processes: cannot read %s; mount it", procDir)
	}
	return nil
}

const procDir = "/proc/"

// proc is a process as it was a moment ago.
type proc struct {
	pid, parent, group int
	dead               bool // a zombie without running threads
}

// readProc reads the fields after the name in parentheses, which can contain anything.
func readProc(pid int) (proc, bool) {
	stat, err := os.ReadFile(procDir + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return proc{}, false
	}
	_, rest, ok := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(" "))
	if !ok {
		return proc{}, false
	}
	const (
		state, parent, group = 0, 1, 2
		threads              = 17
	)
	fields := bytes.Fields(rest)
	if len(fields) <= threads {
		return proc{}, false
	}
	p := proc{pid: pid}
	var running int
	for field, to := range map[int]*int{parent: &p.parent, group: &p.group, threads: &running} {
		if *to, err = strconv.Atoi(string(fields[field])); err != nil {
			return proc{}, false
		}
	}
	// A process whose first thread has ended is shown as a zombie while other threads run.
	p.dead = bytes.ContainsAny(fields[state], "ZX") && running <= 1
	return p, true
}

// descendants lists the descendants of this process without those in spare and below them.
// It can miss a process that is forked meanwhile: call it again.
func descendants(spare map[int]bool) []proc {
	children := childrenOf
	if _, err := os.Stat(procDir + "thread-self/children"); err != nil {
		children = parentTable()
	}
	var found []proc
	queue := []int{os.Getpid()}
	for len(queue) > 0 {
		pids := children(queue[0])
		queue = queue[1:]
		for _, pid := range pids {
			if p, ok := readProc(pid); ok && !spare[pid] {
				found = append(found, p)
				queue = append(queue, pid)
			}
		}
	}
	return found
}

// childrenOf reads the children of every thread. It is fast enough to catch a process that
// keeps forking, however many other processes the machine runs.
func childrenOf(pid int) []int {
	dir := procDir + strconv.Itoa(pid) + "/task/"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var pids []int
	for _, task := range tasks {
		text, _ := os.ReadFile(dir + task.Name() + "/children")
		for field := range bytes.FieldsSeq(text) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// parentTable returns childrenOf for kernels that do not list children.
func parentTable() func(int) []int {
	table := map[int][]int{}
	entries, _ := os.ReadDir(procDir)
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := readProc(pid); ok {
				table[p.parent] = append(table[p.parent], pid)
			}
		}
	}
	return func(pid int) []int { return table[pid] }
}

// signalTree signals the command's group, then each process that is not in it. The group
// gets the signal first and at once, so no fork of its members can escape it.
func signalTree(group int, procs []proc, sig syscall.Signal) {
	ours := map[int]bool{os.Getpid(): true}
	grouped := false
	for _, p := range procs {
		ours[p.pid] = true
		grouped = grouped || p.group == group
	}
	if grouped && group != 0 { // otherwise the number may be reused by now
		_ = syscall.Kill(-group, sig)
	}
	for _, p := range procs {
		if p.group == group {
			continue
		}
		// Get a handle, then read the process: if the number was reused, either the parent is
		// another or the handle is that of a process that has ended.
		h, err := os.FindProcess(p.pid)
		if err != nil {
			continue
		}
		if now, ok := readProc(p.pid); ok && ours[now.parent] {
			_ = h.Signal(sig)
		}
		_ = h.Release()
	}
}

// groupGone reports whether a process group is empty. It is not needed where all
// descendants are found.
func groupGone(int) bool { return true }

// dieWithParent makes the command die with the keeper.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// openPidfd opens a pidfd of this process, which a child inherits under the same number; 0: the
// kernel is older than Linux 5.3.
func openPidfd() int {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return 0
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		_ = unix.Close(fd)
		return 0
	}
	return fd
}

// died waits until the process of a pidfd has died, and reports whether it has.
func died(pidfd int, within time.Duration) bool {
	if pidfd == 0 {
		return false
	}
	for end := time.Now().Add(within); ; {
		poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, int(max(0, time.Until(end).Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR) && time.Now().Before(end):
		default:
			return err == nil && n == 1 && poll[0].Revents&unix.POLLIN != 0
		}
	}
}

// self is this program, even after its file was replaced.
func self() (string, error) { return procDir + "self/exe", nil }
