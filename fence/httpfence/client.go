package httpfence

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/tenurehq/tenure/fence"
)

// Term provides the stamp: a *tenure.Term.
type Term interface {
	// Check returns why the term must not be trusted any more, or nil.
	Check() error
	// Stamp returns the stamp of the term's writes.
	Stamp() fence.Stamp
}

type (
	termKey struct{}
	seqKey  struct{}
)

// WithTerm returns a context whose requests are sent under the term.
func WithTerm(ctx context.Context, t Term) context.Context {
	return context.WithValue(ctx, termKey{}, t)
}

// WithSeq returns a context whose request is the seq-th write to a strict sink. A retry has
// the seq of the first attempt.
func WithSeq(ctx context.Context, seq uint64) context.Context {
	return context.WithValue(ctx, seqKey{}, seq)
}

// WithStamp returns a context whose requests carry exactly this stamp, unchecked: for a
// server that forwards a stamp, so that the leader's token reaches the write through any
// number of servers. A received stamp is never forwarded automatically.
func WithStamp(ctx context.Context, s fence.Stamp) context.Context {
	return WithTerm(ctx, passed(s))
}

// passed is a stamp that is forwarded.
type passed fence.Stamp

func (passed) Check() error         { return nil }
func (p passed) Stamp() fence.Stamp { return fence.Stamp(p) }

// Stamped returns the stamp for a call: of the term in the context, or else of t. If it
// returns an error, send nothing.
func Stamped(ctx context.Context, t Term) (fence.Stamp, error) {
	if own, ok := ctx.Value(termKey{}).(Term); ok {
		t = own
	}
	if t == nil {
		return fence.Stamp{}, errors.New("no term: neither the client nor the context has one")
	}
	if err := t.Check(); err != nil {
		return fence.Stamp{}, err
	}
	s := t.Stamp()
	if seq, ok := ctx.Value(seqKey{}).(uint64); ok {
		if _, whole := t.(passed); !whole {
			s = s.WithSeq(seq)
		}
	}
	return s, nil
}

// Transport is an http.RoundTripper that stamps every request, and sends none after the term
// has ended. It checks the term last, directly before it sends; a request that is late all
// the same must be refused by the sink.
//
// It does not convert responses: see Refusal.
type Transport struct {
	// Term is the term of the requests, unless the context of a request has one. With neither,
	// nothing is sent.
	Term Term
	// Base sends the requests. Nil: http.DefaultTransport.
	Base http.RoundTripper
}

// RoundTrip sends the request with the stamp, in place of an existing one.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	stamped, err := t.stamp(r)
	if err != nil {
		// A RoundTripper must close the body even if it does not send it.
		if r.Body != nil {
			err = errors.Join(err, r.Body.Close())
		}
		return nil, fmt.Errorf("httpfence: not sent: %w", err)
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(stamped)
}

func (t *Transport) stamp(r *http.Request) (*http.Request, error) {
	s, err := Stamped(r.Context(), t.Term)
	if err != nil {
		return nil, err
	}
	clone := r.Clone(r.Context())
	if clone.Header == nil {
		clone.Header = make(http.Header)
	}
	Remove(clone.Header.Del)
	return clone, Format(s, clone.Header.Set)
}
