package api

import "github.com/tenurehq/tenure/fence"

// The phases of a failover, in order. Each begins where the one before it ended.
const (
	// PhaseDetect: from the last write of the old leader until this node saw the end of its
	// term.
	PhaseDetect = "detect"
	// PhaseElect: until the new leader's term began.
	PhaseElect = "elect"
	// PhaseLoad: until the ledger was sealed and what may have changed was read.
	PhaseLoad = "seal_load"
	// PhaseWarm: until the first tick or number was written.
	PhaseWarm = "warm"
	// PhaseFound: until the first call of a client was answered.
	PhaseFound = "found"
)

// Phase is one part of a failover against its share of the target.
type Phase struct {
	Name    string `json:"name"`
	TookUS  int64  `json:"took_us"`
	ShareUS int64  `json:"share_us"`
	// Over: it took longer than its share.
	Over bool `json:"over,omitempty"`
}

// Failover is one change of leader as the new leader saw it.
type Failover struct {
	Token    fence.Token `json:"token"`
	Node     string      `json:"node"`
	Previous string      `json:"previous,omitempty"`
	// Cause is why the term before ended, as far as it is known: crash, resigned, transferred,
	// …; first, if there was none.
	Cause string `json:"cause"`
	// AtMS is when the term began, by the ledger's wall clock.
	AtMS int64 `json:"at_ms"`
	// Phases that have ended. found is missing until a client was answered.
	Phases  []Phase `json:"phases"`
	TotalUS int64   `json:"total_us"`
	// TargetUS is the target (--rto) of which each phase has a share.
	TargetUS int64 `json:"target_us"`
	Over     bool  `json:"over,omitempty"`
	// GapUS is, after a handover in order, the time between the last attempt to write of the old
	// leader and the first of the new one, on the host's clock. Below zero both wrote at the
	// same time.
	GapUS *int64 `json:"gap_us,omitempty"`
}

// Failovers is the answer to GET /failovers: the newest, oldest first.
type Failovers struct {
	Items []Failover `json:"items"`
}
