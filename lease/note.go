package lease

import (
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/store"
)

// NoteKind says what a note is about.
type NoteKind = machine.NoteKind

// The notes.
const (
	NoteOpened     = machine.NoteOpened
	NoteOpenFailed = machine.NoteOpenFailed
	NoteBeat       = machine.NoteBeat
	NoteMissed     = machine.NoteMissed
	NoteSession    = machine.NoteSession
	NoteBegan      = machine.NoteBegan
	NoteEnded      = machine.NoteEnded
	NoteReleased   = machine.NoteReleased
	NoteTry        = machine.NoteTry
	NoteConflict   = machine.NoteConflict
	NoteFailed     = machine.NoteFailed
	NoteWatchLost  = machine.NoteWatchLost
	NoteOverrun    = machine.NoteOverrun
	NoteAsked      = machine.NoteAsked
)

// Note says what a node did and why, for logs and metrics.
type Note struct {
	Kind    NoteKind
	Group   string
	Token   fence.Token
	Session store.SessionID
	Call    string        // the call that it is about: "open", "keep-alive", …
	Count   int           // misses in a row; groups in a batch
	Took    time.Duration // of a call
	Silent  time.Duration // since the last acknowledged keep-alive was sent
	Detail  string
	Err     error
}
