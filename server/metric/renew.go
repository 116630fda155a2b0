// Package metric has the label values that programs share, so that one alert fits all.
package metric

import (
	"errors"

	"github.com/tenurehq/tenure/lease"
)

// Why a renewal or keep-alive failed: the label reason of tenure_renew_failures_total.
const (
	NotLeader   = "NOT_LEADER"   // the session or the term is over
	BackendDown = "BACKEND_DOWN" // the engine did not answer, so the outcome is unknown
	Denied      = "DENIED"       // the caller may not renew it
	Other       = "OTHER"
)

// RenewReasons lists them all.
func RenewReasons() []string { return []string{NotLeader, BackendDown, Denied, Other} }

// RenewReason says why a keep-alive of a store failed.
func RenewReason(err error) string {
	switch {
	case errors.Is(err, lease.ErrSessionDead):
		return NotLeader
	case errors.Is(err, lease.ErrDenied), errors.Is(err, lease.ErrUnauthenticated):
		return Denied
	case errors.Is(err, lease.ErrNewer):
		return Other // it did answer
	case !lease.Definite(err):
		return BackendDown
	default:
		return Other
	}
}
