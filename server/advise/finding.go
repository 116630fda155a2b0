// Package advise says what timings and deployments mean for those who live with them:
// which relation is broken, and what to change. What it concludes is computed from facts
// alone, so that it can be tested without the machine that has them; Pauses and the
// functions that ask an engine or a clock gather them.
package advise

import (
	"fmt"
	"time"
)

// Level of a finding.
type Level string

// The levels. What is broken does not do what is promised; a warning is about a day that
// will come.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Broken  Level = "broken"
)

// Finding is one thing that was looked at.
type Finding struct {
	Level Level  `json:"level"`
	Check string `json:"check"`
	Says  string `json:"says"`
	Fix   string `json:"fix,omitempty"`
}

// Worst is the highest level among findings.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		if f.Level == Broken || f.Level == Warning && worst == OK {
			worst = f.Level
		}
	}
	return worst
}

// findings collects.
type findings []Finding

func (f *findings) add(l Level, check, fix, format string, args ...any) {
	*f = append(*f, Finding{Level: l, Check: check, Says: fmt.Sprintf(format, args...), Fix: fix})
}

// tidy rounds for people.
func tidy(d time.Duration) time.Duration {
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
