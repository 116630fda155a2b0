package scheduler

import (
	"time"

	"github.com/tenurehq/tenure/clock"
)

// ledgerTime is the ledger's wall clock, advanced by ours. It starts when the answer arrives, so
// it is behind rather than ahead, and nothing is fired early.
type ledgerTime struct {
	clock clock.Clock
	ms    int64
	at    clock.Instant
}

func (l *ledgerTime) learn(ms int64) {
	if ms > 0 {
		l.ms, l.at = ms, l.clock.Now()
	}
}

func (l *ledgerTime) now() int64 { return l.ms + l.clock.Now().Sub(l.at).Milliseconds() }

// when is the instant of our clock at which the ledger's clock shows ms.
func (l *ledgerTime) when(ms int64) clock.Instant {
	return l.at.Add(time.Duration(ms-l.ms) * time.Millisecond)
}
