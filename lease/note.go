package lease

import (
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/store"
)

// NoteKind says what a note is about.
type NoteKind string

// The notes.
const (
	NoteOpened     = NoteKind(machine.NoteOpened)
	NoteOpenFailed = NoteKind(machine.NoteOpenFailed)
	NoteBeat       = NoteKind(machine.NoteBeat)
	NoteMissed     = NoteKind(machine.NoteMissed)
	NoteSession    = NoteKind(machine.NoteSession)
	NoteBegan      = NoteKind(machine.NoteBegan)
	NoteEnded      = NoteKind(machine.NoteEnded)
	NoteReleased   = NoteKind(machine.NoteReleased)
	NoteTry        = NoteKind(machine.NoteTry)
	NoteConflict   = NoteKind(machine.NoteConflict)
	NoteFailed     = NoteKind(machine.NoteFailed)
	NoteWatchLost  = NoteKind(machine.NoteWatchLost)
	NoteOverrun    = NoteKind(machine.NoteOverrun)
	NoteAsked      = NoteKind(machine.NoteAsked)
)

// Note tells people and metrics what a node did, and why.
type Note struct {
	Kind    NoteKind
	Group   string
	Token   fence.Token
	Session store.SessionID
	Call    string        // which call it is about: "open", "keep-alive", …
	Count   int           // misses in a row; groups in a batch
	Took    time.Duration // of a call
	Silent  time.Duration // since the last acknowledged keep-alive was sent
	Detail  string
	Err     error
}

func noteOf(n machine.Note) Note {
	out := Note{
		Kind: NoteKind(n.Kind), Group: n.Group, Token: n.Token, Session: n.Session,
		Count: n.Count, Took: n.Took, Silent: n.Silent, Detail: n.Detail, Err: n.Err,
	}
	if n.Call != 0 {
		out.Call = n.Call.String()
	}
	return out
}
