package process_test

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab/chaos/process"
)

// A guard whose program died resumes the process. A guard of an armed process also resumes it
// when it stops later.
func TestGuard(t *testing.T) {
	t.Parallel()
	for _, armed := range []bool{false, true} {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		signal := func(s syscall.Signal) {
			if err := cmd.Process.Signal(s); err != nil {
				t.Error(err)
			}
		}
		await := func(what string, seen func() bool) {
			t.Helper()
			for end := time.Now().Add(20 * time.Second); !seen(); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("not seen: ", what)
				}
			}
		}
		stands := func() bool { return process.IsStopped(cmd.Process.Pid) }
		goes := func() bool { return !stands() }
		signal(syscall.SIGSTOP)
		await("it is stopped", stands)
		wait, err := process.LoseGuard(cmd.Process.Pid, armed)
		if err != nil {
			t.Fatal(err)
		}
		await("it is resumed", goes)
		if armed {
			await("it is stopped again", func() bool { signal(syscall.SIGSTOP); return stands() })
			await("it is resumed again", goes)
		}
		signal(syscall.SIGKILL)
		_ = cmd.Wait()
		if err := wait(); err != nil {
			t.Log("the guard:", err) // its process is gone
		}
	}
}
