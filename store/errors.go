package store

import (
	"errors"
	"fmt"

	"github.com/tenurehq/tenure"
)

// The definite errors of a Store: the call had no effect. Every other error
// leaves the outcome unknown.
var (
	// ErrSessionDead: the session expired, was closed, or never was.
	ErrSessionDead = errors.New("session is dead")
	// ErrConflict: the record is not as the caller saw it. See ConflictError.
	ErrConflict = errors.New("record has changed")
	// ErrSuccessor: the successor cannot take the group.
	ErrSuccessor = tenure.ErrSuccessor
	// ErrRewound: the engine went back; nothing is granted until the epoch is
	// raised.
	ErrRewound = errors.New("the engine went back behind what it had acknowledged: raise the epoch (it was probably restored from a backup)")
	// ErrInvalid: the arguments break a rule. See ArgumentError.
	ErrInvalid = errors.New("invalid argument")
	// ErrBusy: a limit is reached; later it may work.
	ErrBusy = errors.New("limit reached")
	// ErrNotFound: no such request.
	ErrNotFound = errors.New("not found")
	// ErrUnauthenticated: the engine does not know who calls: a wrong user, password or
	// token.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrDenied: the caller is known and not allowed to do this.
	ErrDenied = errors.New("permission denied")
)

// ErrRules: the rules are not of the version under which the call was made (see Ruled). It is
// an ErrBusy.
var ErrRules = fmt.Errorf("the rules keep changing: %w", ErrBusy)

// ErrNewer: the store has something from a newer version of this program, in a format
// that this one does not know and must not write over.
var ErrNewer = errors.New("written by a newer version")

// Definite reports whether err says for certain that the call had no effect.
func Definite(err error) bool {
	for _, d := range []error{ErrSessionDead, ErrConflict, ErrSuccessor, ErrRewound, ErrInvalid, ErrBusy, ErrNotFound, ErrUnauthenticated, ErrDenied} {
		if errors.Is(err, d) {
			return true
		}
	}
	return false
}

// Permanent reports whether err stays until somebody changes the configuration, the
// permissions or the version of the program. A campaign ends with such an error; it
// goes on through every other one.
func Permanent(err error) bool {
	return errors.Is(err, ErrUnauthenticated) || errors.Is(err, ErrDenied) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrNewer)
}

// ConflictError has the current state of the groups that caused a conflict.
type ConflictError struct {
	// Current are the views of the groups that conflicted. An engine that cannot
	// tell leaves it empty.
	Current []View
}

func (e *ConflictError) Error() string {
	if len(e.Current) == 0 {
		return ErrConflict.Error()
	}
	v := e.Current[0]
	switch {
	case v.State == tenure.Led:
		return fmt.Sprintf("group %q is led by %q (token %d)", v.Group, v.Candidate.ID, v.Token)
	default:
		return fmt.Sprintf("group %q has changed: it is at version %d with token %d", v.Group, v.Version, v.Token)
	}
}

func (e *ConflictError) Unwrap() error { return ErrConflict }

// ArgumentError names the field, its value and the rule that it breaks.
type ArgumentError struct {
	Field string
	Value any
	Rule  string
}

func (e *ArgumentError) Error() string {
	if e.Value == nil {
		return fmt.Sprintf("%s: %s", e.Field, e.Rule)
	}
	v := fmt.Sprintf("%v", e.Value)
	if s, ok := e.Value.(string); ok {
		v = fmt.Sprintf("%q", s)
	}
	const most = 100
	if len(v) > most {
		v = v[:most] + "…"
	}
	return fmt.Sprintf("%s is %s: %s", e.Field, v, e.Rule)
}

func (e *ArgumentError) Unwrap() error { return ErrInvalid }
