package api

import (
	"encoding/json"

	"github.com/tenurehq/tenure/fence"
)

// Resource is a fenced resource and its mark.
type Resource struct {
	Name       string      `json:"name"`
	Deployment string      `json:"deployment"`
	Group      string      `json:"group"`
	Token      fence.Token `json:"token"`
	Seq        uint64      `json:"seq,omitempty"`
	Digest     string      `json:"digest,omitempty"`
	Session    string      `json:"session,omitempty"` // that Token was granted to
	LastTick   uint64      `json:"last_tick"`
	// Jobs is how many jobs there are, JobsVersion the version of JobOutcome.
	Jobs        uint64 `json:"jobs"`
	JobsVersion uint64 `json:"jobs_version"`
	// Firings is how many were ever recorded, FiringsPending how many of those are not delivered
	// yet.
	Firings        uint64 `json:"firings"`
	FiringsPending uint64 `json:"firings_pending"`
	UpdatedMS      int64  `json:"updated_ms"`
}

// Mark is the mark of the resource.
func (r Resource) Mark() fence.Mark {
	return fence.Mark{Deployment: r.Deployment, Group: r.Group, Token: r.Token, Seq: r.Seq, Digest: r.Digest, Session: r.Session}
}

// Sequence is the last number of a sequence, and the token that took it.
type Sequence struct {
	Resource  string      `json:"resource"`
	Name      string      `json:"name"`
	LastSeq   uint64      `json:"last_seq"`
	Token     fence.Token `json:"owner_token"`
	UpdatedMS int64       `json:"updated_ms"`
}

// Allocation is a range of a sequence that one commit took under one token, perhaps for several
// callers. N counts the allocations of the sequence.
type Allocation struct {
	N     uint64      `json:"n"`
	First uint64      `json:"first"`
	Last  uint64      `json:"last"`
	Token fence.Token `json:"token"`
	AtMS  int64       `json:"at_ms"`
}

// Checkpoint is a named value of a resource.
type Checkpoint struct {
	Resource  string          `json:"resource"`
	Name      string          `json:"name"`
	Version   uint64          `json:"version"`
	Token     fence.Token     `json:"token"`
	Value     json.RawMessage `json:"value"`
	UpdatedMS int64           `json:"updated_ms"`
}

// Record is a versioned value. Versions count from 1.
type Record struct {
	Resource  string          `json:"resource"`
	Key       string          `json:"key"`
	Version   uint64          `json:"version"`
	Token     fence.Token     `json:"token"`
	Value     json.RawMessage `json:"value"`
	UpdatedMS int64           `json:"updated_ms"`
}

// Tick is an entry in the log of a resource.
type Tick struct {
	N       uint64          `json:"n"`
	Token   fence.Token     `json:"token"`
	Seq     uint64          `json:"seq,omitempty"`
	Key     string          `json:"key,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`
	AtMS    int64           `json:"at_ms"`
}

// Rejection is a write that was refused.
type Rejection struct {
	ID           uint64      `json:"id"`
	Resource     string      `json:"resource"`
	Deployment   string      `json:"deployment"`
	Group        string      `json:"group"`
	Token        fence.Token `json:"token"`
	Seq          uint64      `json:"seq,omitempty"`
	Holder       string      `json:"holder"`
	Reason       string      `json:"reason"`
	CurrentToken fence.Token `json:"current_token"`
	// Applied: fencing was off, and the write was made anyway.
	Applied bool  `json:"applied,omitempty"`
	AtMS    int64 `json:"at_ms"`
}

// Page is a part of a list. Next, if not empty, is where the next part begins.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// Rejections is a page of the refused writes, newest first. Total counts all of them; only the
// newest Kept are listed.
type Rejections struct {
	Page[Rejection]
	Total uint64 `json:"total"`
	Kept  uint64 `json:"kept"`
}

// MaxPage is the most items of one page.
const MaxPage = 1000
