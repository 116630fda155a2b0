package natsfence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tenurehq/tenure/fence"
)

// Header is the header of a message that has the token of its publisher.
const Header = "Fencing-Token"

// Client has the methods of jetstream.JetStream that a Fence needs.
type Client interface {
	PublishMsg(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error)
	Stream(ctx context.Context, stream string) (jetstream.Stream, error)
}

// Fence publishes to one stream under a mark. Any number of processes may use the same mark.
type Fence struct {
	client          Client
	stream, subject string

	mu    sync.Mutex
	last  marked // as it was read or written last
	known bool
}

// marked is a mark and the sequence number of its message, 0 if there is none.
type marked struct {
	fence.Mark
	seq uint64
}

// New returns a Fence whose mark is the last message on a subject of the stream, which must have
// no other use. It does not call the server.
func New(client Client, stream, subject string) (*Fence, error) {
	switch {
	case client == nil:
		return nil, errors.New("natsfence: the client is nil")
	case stream == "" || subject == "":
		return nil, errors.New("natsfence: the stream or the subject of the mark is empty")
	}
	return &Fence{client: client, stream: stream, subject: subject}, nil
}

// Publish publishes data on a subject of the stream if the stamp is admitted.
func (f *Fence) Publish(ctx context.Context, s fence.Stamp, subject string, data []byte, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return f.PublishMsg(ctx, s, &nats.Msg{Subject: subject, Data: data}, opts...)
}

// PublishMsg publishes a message if the stamp is admitted, and adds Header to it. Options must not
// set an expected sequence number.
//
// The error is a refusal (fence.ErrRefused: nothing was published), or an error of NATS: then the
// outcome may be unknown.
func (f *Fence) PublishMsg(ctx context.Context, s fence.Stamp, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if msg.Subject == f.subject {
		return nil, f.wrap(errors.New("the subject belongs to the fence"))
	}
	if msg.Header == nil {
		msg.Header = nats.Header{}
	}
	msg.Header.Set(Header, s.Token.String())
	for {
		m, err := f.raise(ctx, s, fence.Mark.Admit)
		if err != nil {
			return nil, f.wrap(err)
		}
		ack, err := f.publish(ctx, msg, m, opts...)
		if !moved(err) {
			return ack, f.wrap(err)
		}
		f.forget()
	}
}

// Seal raises the mark to the stamp's token before the first write.
func (f *Fence) Seal(ctx context.Context, s fence.Stamp) error {
	f.forget()
	_, err := f.raise(ctx, s, fence.Mark.Admit)
	return f.wrap(err)
}

// Advance raises the mark to any token, past the slip rule. It never lowers it.
func (f *Fence) Advance(ctx context.Context, s fence.Stamp) error {
	f.forget()
	_, err := f.raise(ctx, s, fence.Mark.Advance)
	return f.wrap(err)
}

// Mark returns the mark; the zero Mark if there is none.
func (f *Fence) Mark(ctx context.Context) (fence.Mark, error) {
	m, err := f.read(ctx)
	return m.Mark, f.wrap(err)
}

// raise makes the mark that of the stamp, and returns it. If the mark is that already, as far as
// this process knows, it sends nothing.
func (f *Fence) raise(ctx context.Context, s fence.Stamp, rule func(fence.Mark, fence.Stamp) (fence.Mark, error)) (marked, error) {
	if err := s.Validate(); err != nil {
		return marked{}, err
	}
	m, known := f.recall()
	for {
		if !known {
			var err error
			if m, err = f.read(ctx); err != nil {
				return m, err
			}
			f.keep(m)
		}
		next, err := rule(m.Mark, s)
		if err != nil && known {
			known = false // others may have changed the mark since: look again
			continue
		}
		if err != nil || next == m.Mark {
			return m, err
		}
		text, err := json.Marshal(next)
		if err != nil {
			return m, err
		}
		ack, err := f.publish(ctx, &nats.Msg{Subject: f.subject, Data: text}, m)
		if err == nil {
			m = marked{next, ack.Sequence}
			f.keep(m)
			return m, nil
		}
		if !moved(err) {
			return m, err
		}
		known = false
	}
}

// publish publishes a message if the mark is still m.
func (f *Fence) publish(ctx context.Context, msg *nats.Msg, m marked, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	opts = append(opts[:len(opts):len(opts)], jetstream.WithExpectStream(f.stream), jetstream.WithExpectLastSequenceForSubject(m.seq, f.subject))
	return f.client.PublishMsg(ctx, msg, opts...)
}

// moved reports that the mark is not the one that was expected, or that another message that
// depends on it is on its way.
func moved(err error) bool {
	const constant = 10164 // wrong last sequence, without the right one
	var e *jetstream.APIError
	return errors.As(err, &e) && (e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || e.ErrorCode == constant)
}

func (f *Fence) read(ctx context.Context) (m marked, err error) {
	stream, err := f.client.Stream(ctx, f.stream)
	if err != nil {
		return m, err
	}
	msg, err := stream.GetLastMsgForSubject(ctx, f.subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	m.seq = msg.Sequence
	if err := json.Unmarshal(msg.Data, &m.Mark); err != nil || !m.Token.Valid() {
		return m, fmt.Errorf("the mark cannot be read, so nothing is written: is the subject used for something else? %w", err)
	}
	return m, nil
}

func (f *Fence) recall() (m marked, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last, f.known
}

func (f *Fence) keep(m marked) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// An answer that comes late does not replace a newer mark.
	if !f.known || m.seq >= f.last.seq {
		f.last, f.known = m, true
	}
}

func (f *Fence) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = false
}

func (f *Fence) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("natsfence: stream %s, mark %q: %w", f.stream, f.subject, err)
}
