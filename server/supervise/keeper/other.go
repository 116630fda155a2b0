//go:build !unix

package keeper

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/tenurehq/tenure/store"
)

// WholeTree: no process is found on this system.
const WholeTree = false

// Called reports whether this process was started as a keeper.
func Called([]string) bool { return false }

// Main is never called on this system.
func Main([]string, func(context.Context, Close) error) int { return exitFailed }

// Close is not used on this system.
type Close struct {
	Session  store.SessionID
	TTL      time.Duration
	Settings []byte
}

// Process is not available on this system.
type Process struct{ Proves bool }

// Config says what a keeper runs.
type Config struct {
	Group, Node, Path string
	Args              []string
	File              FencingFile
	Isolate           bool
	Stdin             io.Reader
	Stdout, Stderr    io.Writer
}

// New fails on this system.
func New(Config) (*Process, error) {
	return nil, errors.New("cannot run commands on this system: it has no process groups")
}

// Release does nothing.
func (*Process) Release() {}
