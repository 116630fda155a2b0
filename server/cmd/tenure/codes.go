package main

import (
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/store/remote"
)

// The exit codes of all verbs but exec, whose own are beside it.
const (
	exitOK          = cli.ExitOK
	exitFailure     = cli.ExitFailure
	exitUsage       = cli.ExitUsage
	exitNo          = 3
	exitFenced      = 4
	exitDenied      = 5
	exitUnavailable = cli.ExitUnavailable
)

// storeError gives an error of a store its exit code.
func storeError(err error) error {
	var exit *cli.ExitError
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
	return cli.Exit(code, err)
}

func denied(err error) bool {
	if errors.Is(err, remote.ErrDenied) || errors.Is(err, rpctypes.ErrAuthFailed) {
		return true
	}
	var of rpctypes.EtcdError
	return errors.As(err, &of) && (of.Code() == codes.PermissionDenied || of.Code() == codes.Unauthenticated)
}
