// Package labapi is the protocol between the lab and the nodes of its fleets, beyond package
// reference/api: the routes under /lab, the trace, and the file that lists the processes of a
// fleet.
package labapi

import (
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
)

// Status is the answer to GET /status of a node of a lab.
type Status struct {
	api.Status
	Lab bool `json:"lab"`
	// WallMS is the node's wall clock. Nothing is decided by it.
	WallMS int64 `json:"wall_ms"`
}

// Attempt is one attempt to write. Its time, on the host's clock, is read just before it is sent.
type Attempt struct {
	At    clock.Instant `json:"at"`
	Token fence.Token   `json:"token"`
}

// Attempts is the answer to GET /lab/attempts: the newest, oldest first. Dropped
// counts those that are no longer kept.
type Attempts struct {
	NodeID  string    `json:"node_id"`
	Items   []Attempt `json:"items"`
	Dropped uint64    `json:"dropped"`
}

// Clock is the body and the answer of POST /lab/clock: how this node's clock differs from the
// host's from now on.
type Clock struct {
	SkewMS   int64 `json:"skew_ms"`
	DriftPPM int64 `json:"drift_ppm"`
}

// ArmedFor is how long a node that shall stop itself at a moment waits for that moment.
const ArmedFor = 15 * time.Second

// Garbage asks a node to keep its garbage collector busy (POST /lab/garbage), with a heap of
// HeapMB, for ForMS. The answer, Collected, comes at the end.
type Garbage struct {
	HeapMB int   `json:"heap_mb"`
	ForMS  int64 `json:"for_ms"`
}

// Collected is how often the collector ran meanwhile, and for how long in total it stopped
// the process.
type Collected struct {
	Cycles  int64 `json:"cycles"`
	Stopped int64 `json:"stopped_us"`
}
