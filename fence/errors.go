package fence

import (
	"errors"
	"fmt"
)

// ErrRefused matches every refusal of the rule: errors.Is(err, ErrRefused). The write was not
// made, and a retry does not help.
var ErrRefused = errors.New("fence: write refused")

// StaleError: a newer leader has written or sealed. The writer must stop: its term has ended,
// even if it still believes that it leads.
type StaleError struct {
	Stamp Stamp
	Mark  Mark
}

func (e *StaleError) Error() string {
	if e.Stamp.Token == e.Mark.Token {
		return fmt.Sprintf("fence: stale write refused: %s, but seq %d was already written: writes must come in order", e.Stamp, e.Mark.Seq)
	}
	return fmt.Sprintf("fence: stale write refused: %s, but the sink has seen token %d: stop, another leads", e.Stamp, e.Mark.Token)
}

func (e *StaleError) Unwrap() error { return ErrRefused }

// SlipError: the token is further above the mark than any election would take it.
type SlipError struct {
	Stamp Stamp
	Mark  Mark
}

func (e *SlipError) Error() string {
	return fmt.Sprintf("fence: implausible token refused: %s, but the sink is at %d: more than %d grants or one epoch ahead; if it is right, advance the mark by hand", e.Stamp, e.Mark.Token, MaxJump)
}

func (e *SlipError) Unwrap() error { return ErrRefused }

// ForeignError: the sink belongs to another deployment or group.
type ForeignError struct {
	Stamp Stamp
	Mark  Mark
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("fence: foreign write refused: %s, but the sink belongs to %s/%s: two fleets must not share a sink", e.Stamp, e.Mark.Deployment, e.Mark.Group)
}

func (e *ForeignError) Unwrap() error { return ErrRefused }

// CloneError: two processes have one token. Either two different writes carry one
// stamp (Digest and Mark.Digest differ), or the token was granted to two sessions
// (Stamp.Session and Mark.Session differ), which only a store that lost data does.
type CloneError struct {
	Stamp  Stamp
	Digest string
	Mark   Mark
}

func (e *CloneError) Error() string {
	if e.Mark.ofOtherSession(e.Stamp) {
		return fmt.Sprintf("fence: clone refused: %s of session %s, but the sink has seen this token with session %s: the store granted it twice; raise the epoch", e.Stamp, e.Stamp.Session, e.Mark.Session)
	}
	return fmt.Sprintf("fence: clone refused: %s was already written with digest %q, now comes %q: two processes write under one token", e.Stamp, clip(e.Mark.Digest), clip(e.Digest))
}

func (e *CloneError) Unwrap() error { return ErrRefused }

// InvalidError: the stamp breaks a rule of its format.
type InvalidError struct {
	Field string
	Value string
	Rule  string
}

func (e *InvalidError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("fence: invalid %s: %s", e.Field, e.Rule)
	}
	return fmt.Sprintf("fence: invalid %s %q: %s", e.Field, e.Value, e.Rule)
}

func (e *InvalidError) Unwrap() error { return ErrRefused }
