package api

import (
	"encoding/json"

	"github.com/tenurehq/tenure/fence"
)

// Job is a job as callers write and read it. Schedule is a cron expression of five
// fields, @every 5s, @hourly and the like (CRON_TZ= may stand before), or an RFC 3339
// instant.
type Job struct {
	Key      string `json:"key"`
	Schedule string `json:"schedule"`
	// Misfire says what becomes of instants that passed while nobody led: once (the
	// default), all, skip.
	Misfire string          `json:"misfire,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`
	// NextMS is the next instant by the ledger's wall clock; set by the leader.
	NextMS int64 `json:"next_ms,omitempty"`
}

// JobAnswer is the answer to a write to /jobs.
type JobAnswer struct {
	Token  fence.Token `json:"token"`
	Key    string      `json:"key"`
	NextMS int64       `json:"next_ms,omitempty"`
}

// Order is one order to a worker. EveryMS above 0 makes it a standing order; else it
// is done once, known by (Job, AtMS).
type Order struct {
	Name    string          `json:"name"`
	Run     string          `json:"run"`
	EveryMS int64           `json:"every_ms,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`
	Job     string          `json:"job,omitempty"`
	AtMS    int64           `json:"at_ms,omitempty"`
}

// Fleet is the body of PUT /fleet and the answer to GET /fleet: what all workers do on
// and on. The ledger keeps it as the group's record FleetRecord.
type Fleet struct {
	Orders  []Order     `json:"orders"`
	Version uint64      `json:"version,omitempty"`
	Token   fence.Token `json:"token,omitempty"`
}

// CompactionTask is the body of POST /compaction. A field that is missing has its
// default: 100 GB in segments of 64 MB, at 1 GB a second.
type CompactionTask struct {
	Seed         uint64 `json:"seed,omitempty"`
	Bytes        int64  `json:"total_bytes,omitempty"`
	SegmentBytes int64  `json:"segment_bytes,omitempty"`
	// Rate is how many bytes are gone through in a second.
	Rate int64 `json:"rate,omitempty"`
}

// Compaction is the answer to GET and POST /compaction.
type Compaction struct {
	// Finished: nothing is left to do.
	Finished bool `json:"finished"`
	// Here: the node that answers is at it.
	Here bool `json:"here"`
	// Token is that of the leader that recorded the position last.
	Token fence.Token `json:"token"`
	// Cursor is how far it has come: see package compact. Where it is done here, it is
	// what is done and not only what is recorded.
	Cursor json.RawMessage `json:"cursor"`
}

// The names under which the leaders of a group keep things in the ledger.
const (
	FleetRecord         = "fleet"
	Sequence            = "next"
	HandoverCheckpoint  = "handover"
	FailoversCheckpoint = "failovers"
	CompactionPace      = "compaction-pace" // beside package compact's own
)

// Record is the answer to GET and PUT /records/{key}; its version is in the ETag too.
type Record struct {
	Key       string          `json:"key"`
	Version   uint64          `json:"version"`
	Value     json.RawMessage `json:"value,omitempty"`
	UpdatedMS int64           `json:"updated_ms,omitempty"`
}
