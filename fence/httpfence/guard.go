package httpfence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/tenurehq/tenure/fence"
)

// Marker is a sink that can be asked for its mark: a *filefence.Dir, a
// *redisfence.Fence, a *sqlfence.Sink.
type Marker interface {
	Mark(ctx context.Context) (fence.Mark, error)
}

// Guard refuses requests without a stamp that may be believed, and hands the stamp
// to the handler. It is not a sink: the handler's write is. The zero Guard takes
// every stamp at its word.
type Guard struct {
	// Verify says which stamps are believed; it is given the JSON of the one in the
	// headers. One that cannot tell returns an ErrUnavailable, one that says no any
	// other error; only the text of a fence.InvalidError is passed on. Nil:
	// fence.Unsigned.
	Verify fence.Verifier
	// Mark, if there is one, refuses early what the sink would refuse anyway: it
	// spares the handler the work, and nothing else. If it cannot be read the
	// request is answered 503.
	Mark Marker
}

// Wrap returns a handler that calls next with the stamp in the request's context.
func (g Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := g.Admit(r.Context(), r.Header.Values)
		if err != nil {
			WriteError(w, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(NewContext(r.Context(), s)))
	})
}

// Admit is what Wrap does to a request, for servers of another kind: values returns
// all values of a header.
func (g Guard) Admit(ctx context.Context, values func(header string) []string) (fence.Stamp, error) {
	claimed, err := Parse(values)
	if err != nil {
		return fence.Stamp{}, err
	}
	raw, err := json.Marshal(claimed)
	if err != nil {
		return fence.Stamp{}, err
	}
	verify := g.Verify
	if verify == nil {
		verify = fence.Unsigned
	}
	s, err := verify(ctx, raw)
	if err == nil {
		err = s.Validate()
	}
	if err != nil {
		return fence.Stamp{}, unverified(err)
	}
	if g.Mark == nil {
		return s, nil
	}
	m, err := g.Mark.Mark(ctx)
	if err != nil {
		return fence.Stamp{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	_, err = m.Admit(s)
	return s, err
}

// unverified makes a refusal of whatever a Verifier says no with.
func unverified(err error) error {
	if errors.Is(err, fence.ErrRefused) || errors.Is(err, ErrUnavailable) {
		return err
	}
	return &fence.InvalidError{Field: "stamp", Rule: "it is not believed"}
}
