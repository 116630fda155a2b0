package httpfence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/tenurehq/tenure/fence"
)

// Marker is a sink that can return its mark: a *filefence.Dir, a *redisfence.Fence, a
// *sqlfence.Sink.
type Marker interface {
	Mark(ctx context.Context) (fence.Mark, error)
}

// Guard refuses requests without an acceptable stamp, and passes the stamp to the handler. It
// is not a sink: the handler's write must be. The zero Guard accepts every valid stamp.
type Guard struct {
	// Verify decides which stamps are accepted; it gets the JSON of the stamp in the headers. It
	// returns ErrUnavailable if it cannot decide, and any other error to refuse. Only the text of
	// a fence.InvalidError is sent to the client. Nil: fence.Unsigned.
	Verify fence.Verifier
	// Mark is optional: it refuses early what the sink would refuse anyway, which only saves the
	// handler's work. If it cannot be read, the answer is 503.
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

// Admit does what Wrap does to a request, for other kinds of servers. values returns all
// values of a header.
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

// unverified converts any error of a Verifier that refuses into a refusal.
func unverified(err error) error {
	if errors.Is(err, fence.ErrRefused) || errors.Is(err, ErrUnavailable) {
		return err
	}
	return &fence.InvalidError{Field: "stamp", Rule: "it is not believed"}
}
