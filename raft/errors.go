package raft

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed: the node was closed.
	ErrClosed = errors.New("raft: node is closed")
	// ErrCampaigning: the node campaigns already; one campaign can wait at a time.
	ErrCampaigning = errors.New("raft: this node campaigns already")
	// ErrNotLeading: this node does not lead, or can no longer be sure that it
	// does. Ask Leader.
	ErrNotLeading = errors.New("raft: this node does not lead")
	// ErrUnavailable: no node that could answer was reached in time. It is unknown whether
	// there is a leader.
	ErrUnavailable = errors.New("no leader of the Raft cluster answered")
	// ErrDataInUse: another process has the data directory open.
	ErrDataInUse = errors.New("in use by another process")
	// ErrConfig: the configuration breaks a rule. See ConfigError.
	ErrConfig = errors.New("invalid configuration")
)

// ConfigError names the field, its value and the rule that it breaks.
type ConfigError struct {
	Field string
	Value string
	Rule  string
}

func (e *ConfigError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("raft: %s: %s", e.Field, e.Rule)
	}
	return fmt.Sprintf("raft: %s is %q: %s", e.Field, e.Value, e.Rule)
}

func (e *ConfigError) Unwrap() error { return ErrConfig }
