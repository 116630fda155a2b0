package tenure

import (
	"errors"
	"fmt"

	"github.com/tenurehq/tenure/fence"
)

// The causes of an ending. context.Cause of a term's context is an EndedError
// that wraps one of them.
var (
	// ErrExpired: no keep-alive was acknowledged in time, so the term could no
	// longer be trusted. Another may or may not lead already.
	ErrExpired = errors.New("expired: no keep-alive was acknowledged in time")
	// ErrLost: the engine said that the session or the grant is gone.
	ErrLost = errors.New("lost: the engine no longer knows the session")
	// ErrResigned: the leader gave up of its own will or was asked to.
	ErrResigned = errors.New("resigned")
	// ErrTransferred: the leader handed over to a successor.
	ErrTransferred = errors.New("transferred to a successor")
	// ErrUnhealthy: the leader's own health check failed.
	ErrUnhealthy = errors.New("unhealthy: the leader's own health check failed")
)

// ErrSuccessor: the candidate that was to take over is not alive, not known, or
// does not stand for the group. The term goes on, or, if it had ended already,
// the group was left vacant.
var ErrSuccessor = errors.New("no such successor")

// ErrDataLost: the engine lost data, so it grants tokens that it granted before. A
// sink has seen a token that is not below the one that the engine has just granted.
// Lead returns it and does not campaign again: each further grant would bring the
// token closer to the one that the sink has seen, until writes of an older leader
// are accepted. Raise the epoch above every token that any sink has seen, then start
// again.
var ErrDataLost = errors.New("the store lost data; raise the epoch")

// ErrDone is for work that is finished for good: returned (or wrapped) by it,
// Lead gives the grant up and returns nil instead of campaigning again.
var ErrDone = errors.New("work is done")

var errNoContext = errors.New("tenure: the context is nil")

// EndedError says that a term is over, and why.
type EndedError struct {
	Group string
	Token fence.Token
	Cause error
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("tenure: term of group %q with token %d is over: %v", e.Group, e.Token, e.Cause)
}

func (e *EndedError) Unwrap() error { return e.Cause }
