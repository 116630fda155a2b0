package machine

import (
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// NoteKind says what a note is about. Package lease has the same kinds.
type NoteKind string

// The notes.
const (
	NoteOpened     NoteKind = "session opened"
	NoteOpenFailed NoteKind = "session could not be opened"
	NoteBeat       NoteKind = "keep-alive acknowledged"
	NoteMissed     NoteKind = "keep-alive failed"
	NoteSession    NoteKind = "session ended"
	NoteBegan      NoteKind = "term began"
	NoteEnded      NoteKind = "term ended"
	NoteReleased   NoteKind = "group released"
	NoteTry        NoteKind = "vacancy tried for"
	NoteConflict   NoteKind = "another was faster"
	NoteFailed     NoteKind = "call failed"
	NoteWatchLost  NoteKind = "watch interrupted"
	NoteOverrun    NoteKind = "work has not returned in time"
	NoteAsked      NoteKind = "asked by an operator"
)

// Note says what the machine did and why. Package lease documents the fields.
type Note struct {
	Kind    NoteKind
	Group   string
	Token   fence.Token
	Session store.SessionID
	Call    string // of a CallKind
	Count   int
	Took    time.Duration
	Silent  time.Duration
	Detail  string
	Err     error
}
