package api

import (
	"encoding/json"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
)

// Role is the role of a node now.
type Role string

// The roles.
const (
	// Leader: a term of this node has begun and not ended.
	Leader Role = "leader"
	// Follower: another node leads, and this one is a candidate.
	Follower Role = "follower"
	// Candidate: no leader is known, and this node campaigns.
	Candidate Role = "candidate"
)

// Status is the answer to GET /status.
type Status struct {
	NodeID string `json:"node_id"`
	Group  string `json:"group"`
	Role   Role   `json:"role"`
	// FenceToken is the token of this node's term or, if it does not lead, of the newest term
	// that it knows.
	FenceToken fence.Token `json:"fence_token"`
	// LeaseTTLRemainingMS is how long this node may still trust its term without a further
	// keep-alive; 0 if it does not lead.
	LeaseTTLRemainingMS int64 `json:"lease_ttl_remaining_ms"`

	Leader        string `json:"leader,omitempty"`
	LeaderAddress string `json:"leader_address,omitempty"`
	// SinceMS is when the newest term began, by the engine's wall clock.
	SinceMS int64  `json:"since_ms,omitempty"`
	Address string `json:"address"`
	Backend string `json:"backend"`
	PID     int    `json:"pid"`

	// Working: the leader's work is loaded, and calls are answered.
	Working bool `json:"working"`
	// LastSeq is the last number that was taken, as far as this node knows.
	LastSeq     uint64 `json:"last_seq"`
	JobsPending int64  `json:"jobs_pending"`
	LastTick    *Tick  `json:"last_tick,omitempty"`
	// Scheduler is the status of the scheduler.
	Scheduler json.RawMessage `json:"scheduler,omitempty"`
	// LedgerOK: the ledger answered the last call and can be used.
	LedgerOK bool `json:"ledger_ok"`
	// Kept: a keeper ends this node's session, or its Raft term, as soon as its process has died.
	Kept bool `json:"kept,omitempty"`
	// PauseMaxMS is the longest pause of the process.
	PauseMaxMS float64 `json:"pause_max_ms"`
}

// Tick is the last tick of the scheduler.
type Tick struct {
	N uint64 `json:"n"`
	// AtMS is the instant of the tick, by the ledger's wall clock.
	AtMS int64 `json:"at_ms"`
}

// LeaderBody is the answer to GET /leader of the leader (200), and of every other node (503, as
// a problem with the same members).
type LeaderBody struct {
	Leader        string      `json:"leader"`
	LeaderAddress string      `json:"leader_address"`
	Token         fence.Token `json:"token"`
	SinceMS       int64       `json:"since_ms,omitempty"`
}

// Next is the answer to POST /next. Seq is the number; with n above 1 the numbers are Seq to
// Last.
type Next struct {
	Token fence.Token `json:"token"`
	Seq   uint64      `json:"seq"`
	Last  uint64      `json:"last,omitempty"`
}

// MaxNext is the most numbers of one call.
const MaxNext = 100_000

// Ended is the answer to POST /resign and POST /transfer: the term with that token is over, and
// the successor, if there is one, was asked to lead. The work may not have returned yet.
type Ended struct {
	NodeID    string      `json:"node_id"`
	Token     fence.Token `json:"token"`
	Successor string      `json:"successor,omitempty"`
}

// Handover is what a leader that stops in order leaves in the checkpoint "handover".
type Handover struct {
	Node  string      `json:"node"`
	Token fence.Token `json:"token"`
	// StoppedAt is the time of the leader's last write, this one, on the host's clock.
	StoppedAt clock.Instant `json:"stopped_at"`
	Reason    string        `json:"reason"`
	LastSeq   uint64        `json:"last_seq"`
}

// Ready is the line that a program prints on standard output when it serves.
type Ready struct {
	ID   string `json:"id"`
	Addr string `json:"addr"`
	URL  string `json:"url"`
	PID  int    `json:"pid"`
}
