package keeper

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Only the death of the supervisor closes its session: not the end of its connection while it
// lives, and not on a kernel without pidfd.
func TestDeathOnly(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	closed := 0
	end := func(ctx context.Context, _ Close) error { closed++; return ctx.Err() }
	try := func(pidfd int, within time.Duration) int {
		(&keeper{supervisor: pidfd, end: end, close: &Close{Session: "s", TTL: within}}).closeSession()
		return closed
	}
	if try(fd, 10*time.Millisecond) != 0 {
		t.Error("the session of a living supervisor was closed")
	}
	_ = cmd.Process.Kill()
	if try(fd, time.Minute) != 1 {
		t.Error("the session of a dead supervisor was not closed")
	}
	if try(0, time.Minute) != 1 {
		t.Error("a session was closed without a pidfd")
	}
	_ = cmd.Wait()
}
