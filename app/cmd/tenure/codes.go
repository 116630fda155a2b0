package main

import (
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/remote"
)

// The exit codes of all verbs but exec, whose own are beside it.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNo          = 3
	exitFenced      = 4
	exitDenied      = 5
	exitUnavailable = 6
)

// exitError is an error with the exit code that it stands for.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// storeError gives an error of a store its exit code.
func storeError(err error) error {
	var exit *exitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	code := exitUnavailable
	switch {
	case errors.Is(err, lease.ErrInvalid):
		code = exitUsage
	case denied(err):
		code = exitDenied
	case errors.Is(err, lease.ErrRewound), errors.Is(err, lease.ErrNewer):
		code = exitFailure
	}
	return &exitError{code, err}
}

func denied(err error) bool {
	if errors.Is(err, remote.ErrDenied) || errors.Is(err, rpctypes.ErrAuthFailed) {
		return true
	}
	var of rpctypes.EtcdError
	return errors.As(err, &of) && (of.Code() == codes.PermissionDenied || of.Code() == codes.Unauthenticated)
}
