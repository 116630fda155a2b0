package scheduler

import (
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// decide says what is written about a job that is due at an instant, at most room
// writes of it, in order.
//
// An instant that is not later than the grace is fired, whatever the job says about
// misfires. Older ones are misfires: all of them are fired, or the last stands for
// them, or none is.
func decide(job, misfire string, spec Spec, due, now, grace int64, room int) []ledgerapi.FireWrite {
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

// parked is how long a job is left alone whose schedule this leader cannot read. It
// stays where it is: another version may be able to.
const parked = 60 * 60 * 1000

// park moves such a job out of the way of the others.
func park(job string, due, now int64) ledgerapi.FireWrite {
	return ledgerapi.FireWrite{Job: job, DueMS: due, AtMS: due, NextMS: max(now, due) + parked, Skip: true}
}

// nextTick is the instant of the tick after last: the newest multiple of every that
// has come, if it is later than last, and else the next. A tick that nobody was there
// for is not made up for.
func nextTick(now, last, every int64) int64 {
	current := now - now%every
	switch {
	case current > last:
		return current
	case last-current <= 2*every:
		return last + every
	default:
		// The ledger's clock was set back. To wait for it would stop the ticks for as
		// long as that was.
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
