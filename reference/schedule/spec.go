// Package schedule reads schedules of jobs and computes their instants.
package schedule

import (
	"fmt"
	"strings"
	"time"

	cron "github.com/netresearch/go-cron"
)

// Spec says at which instants a job is due. The zero Spec is due once, at the instant that the
// job was given.
//
// Instants are in milliseconds since 1970; 0 means none.
type Spec struct {
	at    int64 // once
	every int64
	cron  *cron.SpecSchedule
	zone  *time.Location
}

// SyntaxError: this is not a schedule.
type SyntaxError struct {
	Schedule string
	Rule     string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("schedule %q: %s: give five cron fields, @every 5s, @hourly and the like, or an RFC 3339 instant", e.Schedule, e.Rule)
}

// maxSpec is the longest schedule that the ledger keeps, in bytes.
const maxSpec = 256

// searchYears is how far ahead an instant is searched: two 29ths of February can be eight years
// apart.
const searchYears = 9

// Parse reads a schedule: a cron expression of five fields, @every with a duration of at least a
// second, @hourly, @daily, @weekly, @monthly, @yearly, or an RFC 3339 instant.
//
// Fields are in UTC unless CRON_TZ=Europe/Berlin stands before them: the time zone of the
// leader's host does not matter. If both day of month and day of week are restricted, a day that
// matches either is meant, as in crontab(5).
func Parse(s string) (Spec, error) {
	wrong := func(format string, args ...any) (Spec, error) {
		shown := s
		if len(shown) > 64 {
			shown = shown[:64] + "…"
		}
		return Spec{}, &SyntaxError{Schedule: shown, Rule: fmt.Sprintf(format, args...)}
	}
	switch {
	case strings.TrimSpace(s) == "":
		return wrong("it is empty")
	case len(s) > maxSpec:
		return wrong("it has %d bytes, more than %d", len(s), maxSpec)
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		if t.UnixMilli() < 1 {
			return wrong("the instant is not after 1970")
		}
		return Spec{at: t.UnixMilli()}, nil
	}
	zoned := strings.HasPrefix(s, "CRON_TZ=") || strings.HasPrefix(s, "TZ=")
	if !zoned {
		s = "CRON_TZ=UTC " + s
	}
	parser := cron.MustNewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.DowOrDom | cron.Descriptor).WithMaxSearchYears(searchYears)
	parsed, err := parser.Parse(s)
	s = strings.TrimPrefix(s, "CRON_TZ=UTC ")
	if err != nil {
		return wrong("%v", err)
	}
	switch parsed := parsed.(type) {
	case cron.ConstantDelaySchedule:
		return Spec{every: parsed.Delay.Milliseconds()}, nil
	case *cron.SpecSchedule:
		// Next applies the zone itself.
		spec := Spec{cron: parsed, zone: parsed.Location}
		parsed.Location = time.UTC
		if spec.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()) == 0 {
			return wrong("there is no such day")
		}
		return spec, nil
	default:
		return wrong("it is not supported")
	}
}

// First is the first instant of a job that is created now. For an RFC 3339 instant it is that
// instant, also if it has passed: the job's misfire rule then decides.
func (s Spec) First(now int64) int64 {
	if s.at != 0 {
		return s.at
	}
	return s.Next(now)
}

// Next is the first instant after one at which the job was due.
func (s Spec) Next(after int64) int64 {
	switch {
	case s.every > 0:
		return after + s.every
	case s.cron == nil:
		return 0
	}
	var next time.Time
	if from := time.UnixMilli(after).In(s.zone); s.cron.Hour&everyHour != 0 {
		next = s.nextReal(from)
	} else {
		next = s.nextWall(from)
	}
	if next.IsZero() {
		return 0
	}
	return next.UnixMilli()
}

// Last is the last instant that is not after now. due must be one that is not after now either.
func (s Spec) Last(due, now int64) int64 {
	if s.every > 0 {
		return due + (now-due)/s.every*s.every
	}
	missed := func(from int64) bool {
		next := s.Next(from)
		return next != 0 && next <= now
	}
	if !missed(due) {
		return due
	}
	// After low there is a missed instant, after high there is none. Going from one instant to
	// the next could take a million steps.
	low, high := due, now
	for high-low > 1 {
		if mid := low + (high-low)/2; missed(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return s.Next(low)
}

// everyHour is how the parser marks a field that is a plain star.
const everyHour = 1 << 63

// Clocks of a zone are set forward and back. The library fires a daily job twice when an hour is
// repeated, and skips a day whose midnight is skipped. So the library sees a clock without jumps
// only, and the jumps are handled here.

// nextWall is for jobs at hours of the day: each hour that a wall clock shows counts once. A
// skipped hour fires at the moment of the jump. Of an hour that is shown twice the first counts,
// as in cron(8).
func (s Spec) nextWall(after time.Time) time.Time {
	for w := wall(after); ; {
		if w = s.cron.Next(w); w.IsZero() {
			return w
		}
		if t := s.shown(w); t.After(after) {
			return t
		}
	}
}

// nextReal is for jobs of every hour: they keep their interval through a jump.
func (s Spec) nextReal(after time.Time) time.Time {
	w := wall(after)
	for t := after; ; {
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		next := s.cron.Next(w)
		if next.IsZero() {
			return next
		}
		at := next.Add(-time.Duration(offset) * time.Second).In(s.zone)
		if end.IsZero() || at.Before(end) {
			return at
		}
		t = end
		w = wall(t).Add(-time.Second)
	}
}

// wall is what a wall clock shows, as if there were no zones.
func wall(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// shown is when a wall clock shows w for the first time or, if it never does, when it jumps over
// w. It never decreases as w grows.
func (s Spec) shown(w time.Time) time.Time {
	// No zone is further from UTC than a day, and none jumps twice within two.
	early := w.Add(-24 * time.Hour).In(s.zone)
	_, offset := early.Zone()
	t := w.Add(-time.Duration(offset) * time.Second).In(s.zone)
	_, end := early.ZoneBounds()
	if end.IsZero() || t.Before(end) {
		return t
	}
	_, offset = end.Zone()
	if t = w.Add(-time.Duration(offset) * time.Second).In(s.zone); t.Before(end) {
		return end
	}
	return t
}
