// Package advise explains timings and checks deployments: which rule is broken, and what
// to change. Findings are computed from facts alone, so tests need no particular machine;
// QueryEtcd, LongestPause, ThisClock, Throttled and WallOffset collect the facts.
package advise

import (
	"fmt"
	"time"
)

// Level of a finding.
type Level string

// The levels. Broken: a promise does not hold. Warning: it holds now, and may fail later.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Broken  Level = "broken"
)

// Finding is the result of one check.
type Finding struct {
	Level Level  `json:"level"`
	Check string `json:"check"`
	Says  string `json:"says"`
	Fix   string `json:"fix,omitempty"`
}

// Worst returns the highest level among findings.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		if f.Level == Broken || f.Level == Warning && worst == OK {
			worst = f.Level
		}
	}
	return worst
}

type findings []Finding

func (f *findings) add(l Level, check, fix, format string, args ...any) {
	*f = append(*f, Finding{Level: l, Check: check, Says: fmt.Sprintf(format, args...), Fix: fix})
}

// round rounds a duration for display.
func round(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Second:
		return d.Round(time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}
