package api

import (
	"encoding/json"

	"github.com/tenurehq/tenure/fence"
)

// Job is a job as callers write and read it. Schedule is a cron expression of five fields,
// @every 5s, @hourly and the like (CRON_TZ= may stand before it), or an RFC 3339 instant.
type Job struct {
	Key      string `json:"key"`
	Schedule string `json:"schedule"`
	// Misfire says what to do with instants that were missed while nobody led: once (the
	// default), all, skip.
	Misfire string          `json:"misfire,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`
	// NextMS is the next instant by the ledger's wall clock; the leader sets it.
	NextMS int64 `json:"next_ms,omitempty"`
}

// JobAnswer is the answer to a write to /jobs.
type JobAnswer struct {
	Token  fence.Token `json:"token"`
	Key    string      `json:"key"`
	NextMS int64       `json:"next_ms,omitempty"`
}

// Order is one order to a worker. With EveryMS above 0 it is a standing order; otherwise it is
// done once and identified by (Job, AtMS).
type Order struct {
	Name    string          `json:"name"`
	Run     string          `json:"run"`
	EveryMS int64           `json:"every_ms,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`
	Job     string          `json:"job,omitempty"`
	AtMS    int64           `json:"at_ms,omitempty"`
}

// Orders is the body of POST /orders of a worker. Replace makes these the only standing
// orders. Without it they are added, or replaced by name.
type Orders struct {
	Replace bool    `json:"replace,omitempty"`
	Orders  []Order `json:"orders"`
}

// Fleet is the body of PUT /fleet and the answer to GET /fleet: the standing orders of all
// workers. The ledger keeps it as the record FleetRecord of the group.
type Fleet struct {
	Orders  []Order     `json:"orders"`
	Version uint64      `json:"version,omitempty"`
	Token   fence.Token `json:"token,omitempty"`
}

// CompactionTask is the body of POST /compaction. A missing field has its default: 100 GB in
// segments of 64 MB, at 1 GB a second.
type CompactionTask struct {
	Seed         uint64 `json:"seed,omitempty"`
	Bytes        int64  `json:"total_bytes,omitempty"`
	SegmentBytes int64  `json:"segment_bytes,omitempty"`
	// Rate is how many bytes are processed in a second.
	Rate int64 `json:"rate,omitempty"`
}

// Compaction is the answer to GET and POST /compaction.
type Compaction struct {
	// Finished: nothing is left to do.
	Finished bool `json:"finished"`
	// Here: the node that answers works on it.
	Here bool `json:"here"`
	// Token is that of the leader that last recorded the position.
	Token fence.Token `json:"token"`
	// Cursor is the progress: see package compactor. On the node that works on it, it also has
	// what is not recorded yet.
	Cursor json.RawMessage `json:"cursor"`
}

// The names of what the leaders of a group keep in the ledger.
const (
	FleetRecord         = "fleet"
	Sequence            = "next"
	HandoverCheckpoint  = "handover"
	FailoversCheckpoint = "failovers"
)

// Record is the answer to GET and PUT /records/{key}. The ETag has its version too.
type Record struct {
	Key       string          `json:"key"`
	Version   uint64          `json:"version"`
	Value     json.RawMessage `json:"value,omitempty"`
	UpdatedMS int64           `json:"updated_ms,omitempty"`
}
