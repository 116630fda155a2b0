package scheduler

import (
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/schedule"
)

// decide returns the writes for a job that is due at an instant, in order, at most room.
//
// An instant that is not later than the grace is fired, whatever the misfire rule of the job is.
// Older ones are misfires: all of them are fired, or only the last, or none.
func decide(job, misfire string, spec schedule.Spec, due, now, grace int64, room int) []ledgerapi.FireWrite {
	var writes []ledgerapi.FireWrite
	for len(writes) < room && due != 0 && due <= now {
		w := ledgerapi.FireWrite{Job: job, DueMS: due, AtMS: due}
		if now-due > grace && misfire != ledgerapi.MisfireAll {
			w.AtMS = spec.Last(due, now-grace-1)
			w.Skip = misfire == ledgerapi.MisfireSkip
		}
		w.NextMS = spec.Next(w.AtMS)
		writes = append(writes, w)
		due = w.NextMS
	}
	return writes
}

// postponedMS is how long a job whose schedule this leader cannot read is postponed. The job stays:
// another version of the program may be able to read it.
const postponedMS = 60 * 60 * 1000

// postpone postpones such a job, so that it does not block the others.
func postpone(job string, due, now int64) ledgerapi.FireWrite {
	return ledgerapi.FireWrite{Job: job, DueMS: due, AtMS: due, NextMS: max(now, due) + postponedMS, Skip: true}
}

// nextTick is the instant of the tick after last: the newest multiple of every that has passed,
// if it is later than last, and else the next. Missed ticks are not made up for.
func nextTick(now, last, every int64) int64 {
	current := now - now%every
	switch {
	case current > last:
		return current
	case last-current <= 2*every:
		return last + every
	default:
		// The ledger's clock was set back. Waiting for it would stop the ticks for that long.
		return current + every
	}
}

// missedTicks is how many instants lie between two ticks.
func missedTicks(last, tick, every int64) int64 {
	if last == 0 || tick <= last {
		return 0
	}
	return max(0, (tick-last)/every-1)
}
