package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// wholeTree: every process below this one is found, wherever it has gone.
const wholeTree = true

// adopt makes this process the parent of every descendant whose own parent ends.
func adopt() error {
	const prSetChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return fmt.Errorf("keep: subreaper: %w", errno)
	}
	if _, ok := look(os.Getpid()); !ok {
		return fmt.Errorf("keep: %s cannot be read, so processes cannot be found: mount it", procDir)
	}
	return nil
}

const procDir = "/proc/"

// proc is a process as it was a moment ago.
type proc struct {
	pid, parent, group int
	dead               bool // a zombie, and not one of whose threads others still run
}

// look reads the fields that follow the name in parentheses, which may hold anything.
func look(pid int) (proc, bool) {
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
	var wrong [3]error
	p.parent, wrong[0] = strconv.Atoi(string(fields[parent]))
	p.group, wrong[1] = strconv.Atoi(string(fields[group]))
	running, err := strconv.Atoi(string(fields[threads]))
	wrong[2] = err
	if errors.Join(wrong[:]...) != nil {
		return proc{}, false
	}
	// A process whose first thread has ended shows as a zombie while the others run on.
	p.dead = bytes.ContainsAny(fields[state], "ZX") && running <= 1
	return p, true
}

// below lists the descendants of this process, but nothing at or below those to be
// spared. A process that is forked meanwhile may be missed: ask again.
func below(spare map[int]bool) []proc {
	kids := childrenOf
	if _, err := os.Stat(procDir + "thread-self/children"); err != nil {
		kids = parentTable()
	}
	var found []proc
	queue := []int{os.Getpid()}
	for len(queue) > 0 {
		pids := kids(queue[0])
		queue = queue[1:]
		for _, pid := range pids {
			if p, ok := look(pid); ok && !spare[pid] {
				found = append(found, p)
				queue = append(queue, pid)
			}
		}
	}
	return found
}

// childrenOf asks for the children of every thread: cheap, whatever else runs on the
// machine, and so quick enough to catch a process that keeps forking.
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

// parentTable is for kernels that do not list children.
func parentTable() func(int) []int {
	table := map[int][]int{}
	entries, _ := os.ReadDir(procDir)
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := look(pid); ok {
				table[p.parent] = append(table[p.parent], pid)
			}
		}
	}
	return func(pid int) []int { return table[pid] }
}

// send signals the command's group, then each descendant that is not in it, dead ones too:
// it costs nothing. The group goes first and at once: no fork of its members can slip
// between.
func send(group int, procs []proc, sig syscall.Signal) {
	ours := map[int]bool{os.Getpid(): true}
	grouped := false
	for _, p := range procs {
		ours[p.pid] = true
		grouped = grouped || p.group == group
	}
	if grouped { // or the number may be somebody else's by now
		_ = syscall.Kill(-group, sig)
	}
	for _, p := range procs {
		if p.group == group {
			continue
		}
		// A handle first, then the look: if the number has changed hands since, the parent
		// says so, or the handle is of one who is gone.
		h, err := os.FindProcess(p.pid)
		if err != nil {
			continue
		}
		if now, ok := look(p.pid); ok && ours[now.parent] {
			_ = h.Signal(sig)
		}
		_ = h.Release()
	}
}

// gone reports whether a process group has no members; where the whole tree is seen it
// need not be asked.
func gone(int) bool { return true }

// dieWithParent ends the command with the keeper.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// self is this program, also after its file was replaced.
func self() (string, error) { return procDir + "self/exe", nil }
