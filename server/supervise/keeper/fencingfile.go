// Package keeper is the process between a supervisor and its command that stops the
// command, and every process that it started, before the deadline of the lease.
//
// The supervisor starts a keeper with New and sends it messages; the program's main
// calls Main if Called reports true. The keeper starts the command in a process group of
// its own. On Linux it is a subreaper, so every process that the command starts remains
// its descendant, even after a double fork or in a session of its own.
//
//	deadline             the last moment at which the lease certainly holds
//	deadline − Reserve   SIGKILL, repeated until no process is left
//	… − grace            SIGTERM; the term has ended, and no message can extend it
//
// The deadline is an instant on the clock of package clock, so a message that arrives late
// does not extend it. A supervisor that is paused, killed or cut off from the store leaves
// the command running no longer than the lease.
//
// # Limitations
//
// Outside Linux only the command's process group is stopped. Package supervise lists the
// other limits.
package keeper

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// Reserve is how long before the deadline SIGKILL is sent: the keeper needs time to wake
// up, and the kernel to deliver the signal.
const Reserve = 200 * time.Millisecond

// exitFailed is the exit code of a keeper that cannot work.
const exitFailed = 125

// Environment variables of the command.
const (
	EnvGroup      = "TENURE_GROUP"
	EnvNode       = "TENURE_NODE"
	EnvToken      = "TENURE_FENCING_TOKEN"
	EnvSession    = "TENURE_FENCING_SESSION" // fence.Stamp.Session of the term
	EnvDeployment = "TENURE_DEPLOYMENT"
	// EnvFencingFile names a file of key=value lines: group, node, deployment, token, session,
	// deadline (RFC 3339, this machine's wall clock: for people) and deadline_boottime_ns
	// (CLOCK_BOOTTIME: for programs). Each keep-alive replaces the file.
	EnvFencingFile = "TENURE_FENCING_FILE"
)

// FencingFile is the file of EnvFencingFile, in a directory that other users cannot read.
type FencingFile struct{ path string }

// NewFencingFile makes the directory.
func NewFencingFile() (FencingFile, error) {
	dir, err := os.MkdirTemp("", "tenure-exec-")
	if err != nil {
		return FencingFile{}, fmt.Errorf("fencing file: %w", err)
	}
	return FencingFile{filepath.Join(dir, "token")}, nil
}

func (f FencingFile) next() string { return f.path + ".new" }

// Write replaces the file.
func (f FencingFile) Write(s fence.Stamp, node string, now, deadline clock.Instant) error {
	text := fmt.Sprintf("group=%s\nnode=%s\ndeployment=%s\ntoken=%d\nsession=%s\ndeadline=%s\ndeadline_boottime_ns=%d\n",
		s.Group, node, s.Deployment, s.Token, s.Session, time.Now().Add(deadline.Sub(now)).UTC().Format(time.RFC3339Nano), deadline)
	if err := os.WriteFile(f.next(), []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(f.next(), f.path)
}

// Remove removes the file and its directory.
func (f FencingFile) Remove() {
	if f.path != "" {
		_, _, _ = os.Remove(f.path), os.Remove(f.next()), os.Remove(filepath.Dir(f.path))
	}
}
