package storecli

import (
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/embeddedetcd"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
)

// exitError gives an error of a store its exit code.
func exitError(err error) error {
	var exit *cli.ExitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	err = plain(err)
	code := cli.ExitUnavailable
	switch {
	case errors.Is(err, store.ErrInvalid):
		code = cli.ExitUsage
	case Denied(err):
		code = cli.ExitDenied
	case errors.Is(err, store.ErrRewound), errors.Is(err, store.ErrNewer):
		code = cli.ExitFailure
	}
	return cli.Exit(code, err)
}

// plain removes the name of a call from the start of an error: users know the command, and
// not the calls that it makes.
func plain(err error) error {
	if call := (*remote.CallError)(nil); errors.As(err, &call) && call.Error() == err.Error() {
		return call.Err
	}
	return err
}

// CheckEngine adds a remedy to the error of an engine that cannot be reached.
func CheckEngine(err error) error {
	var exit *cli.ExitError
	if !errors.As(err, &exit) || exit.Code != cli.ExitUnavailable {
		return err
	}
	return cli.Exit(exit.Code, fmt.Errorf("%w\ncheck --store (TENURE_STORE), and that the engine runs and can be reached from this host", err))
}

// Denied reports whether the store refused the caller for lack of permission.
func Denied(err error) bool {
	if errors.Is(err, store.ErrDenied) || errors.Is(err, store.ErrUnauthenticated) || errors.Is(err, remote.ErrDenied) || errors.Is(err, rpctypes.ErrAuthFailed) {
		return true
	}
	var of rpctypes.EtcdError
	return errors.As(err, &of) && (of.Code() == codes.PermissionDenied || of.Code() == codes.Unauthenticated)
}

// EngineError gives an error of an embedded engine its exit code.
func EngineError(err error) error {
	code := cli.ExitFailure
	var config *embeddedetcd.ConfigError
	switch {
	case errors.As(err, &config):
		code = cli.ExitUsage
	case errors.Is(err, embeddedetcd.ErrNotReady):
		code = cli.ExitUnavailable
	}
	return cli.Exit(code, err)
}
