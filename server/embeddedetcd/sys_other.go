//go:build !linux && !darwin

package embeddedetcd

import (
	"errors"
	"io"
)

var errLocked = errors.New("locked by another process")

// lockDir does nothing: only etcd's lock on the database remains.
func lockDir(string) (io.Closer, error) { return nil, nil }

func freeBytes(string) (int64, bool) { return 0, false }
