package api

import (
	"errors"
	"fmt"

	"github.com/tenurehq/tenure/fence"
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
	// ErrNotFound: it does not exist.
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
	Field string
	Value string
	Rule  string
}

func (e *RequestError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("ledger: invalid %s: %s", e.Field, e.Rule)
	}
	return fmt.Sprintf("ledger: invalid %s %q: %s", e.Field, e.Value, e.Rule)
}

// VersionError: the record has another version than the writer expects.
type VersionError struct {
	Space   string // of a shared record
	Key     string
	Version uint64 // expected
	Current uint64 // 0: there is none
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("ledger: record %q has version %d and the writer expects %d; read it again", e.Key, e.Current, e.Version)
}

// SequenceError: the proposed range does not follow the last number.
type SequenceError struct {
	Name    string
	First   uint64
	LastSeq uint64
}

func (e *SequenceError) Error() string {
	if e.LastSeq >= MaxSequence {
		return fmt.Sprintf("ledger: sequence %q is used up at %d", e.Name, e.LastSeq)
	}
	return fmt.Sprintf("ledger: sequence %q continues at %d and the proposed range begins at %d", e.Name, e.LastSeq+1, e.First)
}

// Reason is the label of a refusal, in metrics and in the list of refused writes; empty if err
// is not a refusal.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	var (
		stale   *fence.StaleError
		slip    *fence.SlipError
		foreign *fence.ForeignError
		clone   *fence.CloneError
		invalid *fence.InvalidError
	)
	switch {
	case errors.As(err, &stale):
		return "stale"
	case errors.As(err, &slip):
		return "slip"
	case errors.As(err, &foreign):
		return "foreign"
	case errors.As(err, &clone):
		return "clone"
	case errors.As(err, &invalid):
		return "invalid"
	}
	return ""
}
