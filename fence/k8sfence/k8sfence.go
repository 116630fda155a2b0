package k8sfence

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tenurehq/tenure/fence"
)

// The annotations that are the mark.
const (
	TokenNote      = "tenure/fencing-token"
	GroupNote      = "tenure/fencing-group"
	DeploymentNote = "tenure/fencing-deployment"
	SessionNote    = "tenure/fencing-session"
)

// Client has the methods of a typed client that a Fence needs.
type Client[T meta.Object] interface {
	Get(ctx context.Context, name string, opts meta.GetOptions) (T, error)
	Update(ctx context.Context, object T, opts meta.UpdateOptions) (T, error)
}

// Fence is one fenced object. Any number of processes may write it.
type Fence[T meta.Object] struct {
	client Client[T]
	name   string
	// One write at a time: two of the same process would only disturb each other.
	turn chan struct{}
}

// New returns the Fence of an object, which must exist. It does not call the server.
func New[T meta.Object](client Client[T], name string) (*Fence[T], error) {
	switch {
	case client == nil:
		return nil, errors.New("k8sfence: the client is nil")
	case name == "":
		return nil, errors.New("k8sfence: the name is empty")
	}
	return &Fence[T]{client: client, name: name, turn: make(chan struct{}, 1)}, nil
}

// Update changes the object if the stamp is admitted. change is called again with the new state if
// another write came in between.
//
// The error is a refusal (fence.ErrRefused: nothing was written), that of change, or one of the
// API server: then the outcome may be unknown.
func (f *Fence[T]) Update(ctx context.Context, s fence.Stamp, change func(T) error) error {
	return f.write(ctx, s, fence.Mark.Admit, change)
}

// Seal raises the mark to the stamp's token before the first write.
func (f *Fence[T]) Seal(ctx context.Context, s fence.Stamp) error {
	return f.write(ctx, s, fence.Mark.Admit, nil)
}

// Advance raises the mark to any token, past the slip rule. It never lowers it.
func (f *Fence[T]) Advance(ctx context.Context, s fence.Stamp) error {
	return f.write(ctx, s, fence.Mark.Advance, nil)
}

// Mark returns the mark; the zero Mark if the object has none.
func (f *Fence[T]) Mark(ctx context.Context) (fence.Mark, error) {
	object, err := f.client.Get(ctx, f.name, meta.GetOptions{})
	if err != nil {
		return fence.Mark{}, f.wrap(err)
	}
	m, err := MarkOf(object)
	return m, f.wrap(err)
}

// MarkOf returns the mark of an object, for readers; the zero Mark if it has none.
func MarkOf(object meta.Object) (m fence.Mark, err error) {
	notes := object.GetAnnotations()
	text, found := notes[TokenNote]
	if !found {
		return m, nil
	}
	m = fence.Mark{Deployment: notes[DeploymentNote], Group: notes[GroupNote], Session: notes[SessionNote]}
	if m.Token, err = fence.ParseToken(text); err != nil {
		// Not a refusal: the stamp is not at fault.
		return fence.Mark{}, fmt.Errorf("the annotation %s is %q, so nothing is written", TokenNote, text)
	}
	return m, nil
}

func (f *Fence[T]) write(ctx context.Context, s fence.Stamp, rule func(fence.Mark, fence.Stamp) (fence.Mark, error), change func(T) error) error {
	if err := s.Validate(); err != nil {
		return f.wrap(err)
	}
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return f.wrap(ctx.Err())
	}
	for {
		// Without a resourceVersion the API server reads the newest state.
		object, err := f.client.Get(ctx, f.name, meta.GetOptions{})
		if err != nil {
			return f.wrap(err)
		}
		m, err := MarkOf(object)
		if err != nil {
			return f.wrap(err)
		}
		next, err := rule(m, s)
		if err != nil {
			return f.wrap(err)
		}
		version := object.GetResourceVersion()
		if version == "" { // such an update would have no condition
			return f.wrap(errors.New("the client returned an object without a resourceVersion"))
		}
		if change == nil && next == m {
			return nil
		}
		if change != nil {
			if err := change(object); err != nil {
				return err
			}
		}
		object.SetResourceVersion(version)
		setMark(object, next)
		if _, err := f.client.Update(ctx, object, meta.UpdateOptions{}); !apierrors.IsConflict(err) {
			return f.wrap(err)
		}
	}
}

func setMark(object meta.Object, m fence.Mark) {
	notes := object.GetAnnotations()
	if notes == nil {
		notes = make(map[string]string)
	}
	notes[TokenNote], notes[DeploymentNote], notes[GroupNote], notes[SessionNote] = m.Token.String(), m.Deployment, m.Group, m.Session
	object.SetAnnotations(notes)
}

func (f *Fence[T]) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("k8sfence: object %q: %w", f.name, err)
}
