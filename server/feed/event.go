package feed

import (
	"bytes"
	"encoding/json"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
)

// Kind is the type of a message, as it stands in a stream.
type Kind string

// The kinds.
const (
	// Changed: somebody began or ceased to lead, or it is not known who does.
	Changed Kind = "LEADER_CHANGED"
	// Reset: changes were missed that nobody remembers; the present follows.
	Reset Kind = "reset"
)

// Event is what observers are told about one group.
type Event struct {
	Group string `json:"group"`
	// State is led, vacant or unknown: the engine cannot be seen, and whoever led may
	// lead on.
	State string `json:"state"`
	// Token belongs to the newest term, ended or not; 0 is none.
	Token fence.Token `json:"term"`
	// Holder leads, or led last.
	Holder   string            `json:"leader_node_id"`
	Address  string            `json:"address,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// SinceMS is when the term began, by the engine's wall clock: for people.
	SinceMS int64 `json:"since_ms,omitempty"`
	// Reason says why the term ended.
	Reason string `json:"reason,omitempty"`
	// Snapshot: this is how things stand, and need not have changed just now.
	Snapshot bool `json:"snapshot,omitempty"`
}

func eventOf(l tenure.Leader) Event {
	e := Event{
		Group: l.Group, State: l.State.String(), Token: l.Token, Holder: l.Candidate.ID,
		Address: l.Candidate.Address, Metadata: l.Candidate.Metadata, Reason: l.Reason,
	}
	if !l.Since.IsZero() {
		e.SinceMS = l.Since.UnixMilli()
	}
	return e
}

// Message is one event for one subscriber.
type Message struct {
	Kind Kind
	Event
	// ID is the cursor after it; empty if it leads nowhere.
	ID    string
	frame []byte
}

func newMessage(kind Kind, e Event, id string) Message {
	data, err := json.Marshal(e)
	if err != nil {
		data = []byte("{}") // strings, numbers and a map of strings
	}
	var b bytes.Buffer
	b.WriteString("event: " + string(kind) + "\n")
	if id != "" {
		b.WriteString("id: " + id + "\n")
	}
	b.WriteString("data: ")
	b.Write(data) // JSON has no line break in it
	b.WriteString("\n\n")
	return Message{Kind: kind, Event: e, ID: id, frame: b.Bytes()}
}

// Frame is the message as a Server-Sent Event. It is shared: not to be written to.
func (m Message) Frame() []byte { return m.frame }
