// Package metric has label values that several programs use, so that one alert works for all.
package metric

import (
	"errors"

	"github.com/tenurehq/tenure/store"
)

// The values of the label reason of tenure_renew_failures_total.
const (
	NotLeader   = "NOT_LEADER"   // the session or the term has ended
	BackendDown = "BACKEND_DOWN" // the engine did not answer, so the outcome is unknown
	Denied      = "DENIED"       // the caller may not renew
	Other       = "OTHER"
)

// RenewReasons lists all values.
func RenewReasons() []string { return []string{NotLeader, BackendDown, Denied, Other} }

// RenewReason returns the reason for an error of a keep-alive.
func RenewReason(err error) string {
	switch {
	case errors.Is(err, store.ErrSessionDead):
		return NotLeader
	case errors.Is(err, store.ErrDenied), errors.Is(err, store.ErrUnauthenticated):
		return Denied
	case errors.Is(err, store.ErrNewer):
		return Other // not BackendDown: the engine answered
	case !store.Definite(err):
		return BackendDown
	default:
		return Other
	}
}
