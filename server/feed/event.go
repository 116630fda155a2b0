package feed

import (
	"encoding/json"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
)

// Kind is the type of a message in a stream.
type Kind string

// The kinds.
const (
	// Changed: a term began or ended, or the leader is unknown.
	Changed Kind = "LEADER_CHANGED"
	// Reset: changes were missed and are not available; the current state follows.
	Reset Kind = "reset"
)

// Event is a change of one group.
type Event struct {
	Group string `json:"group"`
	// State is led, vacant or unknown. Unknown: the engine cannot be watched, and the last
	// leader may still lead.
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
	// Snapshot: this is the current state, which need not have changed just now.
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
	// ID is the cursor after the message; empty if it has none.
	ID    string
	frame []byte
}

func newMessage(kind Kind, e Event, id string) Message {
	data, err := json.Marshal(e)
	if err != nil {
		data = []byte("{}") // cannot happen: strings, numbers and a map of strings
	}
	frame := "event: " + string(kind) + "\n"
	if id != "" {
		frame += "id: " + id + "\n"
	}
	frame += "data: " + string(data) + "\n\n" // JSON has no line breaks
	return Message{Kind: kind, Event: e, ID: id, frame: []byte(frame)}
}

// Frame returns the message as a Server-Sent Event. It is shared: do not change it.
func (m Message) Frame() []byte { return m.frame }
