package api

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
)

// The errors of the ledger besides the refusals of package fence. After all but ErrUnknown
// nothing was written.
var (
	// ErrUnknown: the write may have been made or not. A strict batch may be retried unchanged;
	// before any other retry, read.
	ErrUnknown = errors.New("ledger: the outcome is unknown")
	// ErrUnavailable: the ledger or its database cannot be reached now.
	ErrUnavailable = errors.New("ledger: unavailable, nothing was written")
	// ErrDataLost: the ledger is behind what the caller has seen, or its database file is gone.
	// It accepts no writes until an operator accepts its state.
	ErrDataLost = errors.New("ledger: acknowledged data was lost, nothing was written; restore it, or run `fleet ledger accept`")
	// ErrBusy: too many writes wait.
	ErrBusy = errors.New("ledger: too many writes are waiting, nothing was written")
	// ErrNotFound: the object does not exist.
	ErrNotFound = errors.New("ledger: not found")
	// ErrTooManyResources: the limit of resources is reached.
	ErrTooManyResources = errors.New("ledger: too many resources, nothing was written")
	// ErrTooManyRecords: the limit of shared records is reached.
	ErrTooManyRecords = errors.New("ledger: too many shared records, nothing was written")
	// ErrDenied: the caller may not do this.
	ErrDenied = errors.New("ledger: denied, nothing was written")
)

// RequestError: the request is invalid.
type RequestError struct {
	Field string `json:"field"`
	Value string `json:"value"`
	Rule  string `json:"rule"`
}

func (e *RequestError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("ledger: invalid %s: %s", e.Field, e.Rule)
	}
	return fmt.Sprintf("ledger: invalid %s %q: %s", e.Field, e.Value, e.Rule)
}

// VersionError: the record has another version than the writer expects.
type VersionError struct {
	Space   string `json:"space,omitempty"` // of a shared record
	Key     string `json:"name"`
	Version uint64 `json:"version"`         // expected
	Current uint64 `json:"current_version"` // 0: there is none
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("ledger: record %q has version %d and the writer expects %d; read it again", e.Key, e.Current, e.Version)
}

// SequenceError: the proposed range does not follow the last number.
type SequenceError struct {
	Name    string `json:"name"`
	First   uint64 `json:"first"`
	LastSeq uint64 `json:"last_seq"`
}

func (e *SequenceError) Error() string {
	if e.LastSeq >= MaxSequence {
		return fmt.Sprintf("ledger: sequence %q is used up at %d", e.Name, e.LastSeq)
	}
	return fmt.Sprintf("ledger: sequence %q continues at %d and the proposed range begins at %d", e.Name, e.LastSeq+1, e.First)
}

// Reasons are the labels of refusals, in metrics and in the list of refused writes.
var Reasons = []string{httpfence.CodeStale, httpfence.CodeSlip, httpfence.CodeForeign, httpfence.CodeClone, httpfence.CodeInvalid}

// Reason is the label of a refusal; empty if err is not one.
func Reason(err error) string {
	if !errors.Is(err, fence.ErrRefused) {
		return ""
	}
	if code := httpfence.ProblemOf(err).Code; slices.Contains(Reasons, code) {
		return code
	}
	return httpfence.CodeInvalid // there was no stamp
}
