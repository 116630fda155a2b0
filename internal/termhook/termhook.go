// Package termhook lets package elector make terms of package tenure, whose users must not.
package termhook

import (
	"context"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// Trust is what a term needs of elector.Trust.
type Trust interface {
	Remaining() time.Duration
	AtRisk() <-chan struct{}
}

// Grant is elector.Grant, which documents it.
type Grant interface {
	Ended(cause error)
	Successor(ctx context.Context, candidate string) error
	Release(ctx context.Context, candidate string) error
	Suspect(ctx context.Context, seen fence.Token) error
}

// Config is elector.TermConfig. Candidate is a tenure.Candidate.
type Config struct {
	Group, Deployment, Session string
	Token                      fence.Token
	Candidate                  any
	Trust                      Trust
	Grant                      Grant
}

// New makes a *tenure.Term. Package tenure sets it.
var New func(Config) (term any, end func(cause error) bool)

// Set sets New.
func Set(newTerm func(Config) (any, func(error) bool)) struct{} {
	New = newTerm
	return struct{}{}
}
