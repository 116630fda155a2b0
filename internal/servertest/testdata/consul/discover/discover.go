// Package discover has the names of go-discover that Consul's agent refers to. It finds no
// servers.
package discover

import (
	"errors"
	"log"
)

type (
	// Provider searches one cloud.
	Provider any
	// Discover searches them all.
	Discover struct{}
	// Option of New.
	Option func(*Discover) error
)

// Providers is empty.
var Providers map[string]Provider

// New returns a Discover.
func New(...Option) (*Discover, error) { return &Discover{}, nil }

// WithUserAgent does nothing.
func WithUserAgent(string) Option { return nil }

// WithProviders does nothing.
func WithProviders(map[string]Provider) Option { return nil }

// Names is empty.
func (*Discover) Names() []string { return nil }

// Addrs fails.
func (*Discover) Addrs(string, *log.Logger) ([]string, error) {
	return nil, errors.New("this build does not search clouds for servers")
}
