package schedule_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/reference/schedule"
)

func ms(t *testing.T, s string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMilli()
}

func parse(t *testing.T, s string) schedule.Spec {
	t.Helper()
	spec, err := schedule.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// The instants of a schedule are those of crontab(5), also when the clock is changed: an hour
// of the day counts once, a skipped one fires at the jump, and hourly jobs keep their
// interval.
func TestSpecInstants(t *testing.T) {
	for _, tt := range []struct {
		name, spec, from string
		want             []string
	}{
		{"every five seconds", "@every 5s", "2026-01-01T00:00:01Z", []string{"2026-01-01T00:00:06Z", "2026-01-01T00:00:11Z"}},
		{"UTC unless it says otherwise", "30 2 * * *", "2026-03-29T00:00:00Z", []string{"2026-03-29T02:30:00Z", "2026-03-30T02:30:00Z"}},
		{"an instant once", "2026-03-29T02:30:00Z", "2026-03-29T02:30:00Z", []string{""}},
		{"either day", "0 0 13 * 5", "2026-11-01T00:00:00Z", []string{"2026-11-06T00:00:00Z", "2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"}},
		{"leap years", "0 0 29 2 *", "2097-01-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		{"Berlin", "CRON_TZ=Europe/Berlin 30 2 * * *", "2026-06-01T12:00:00Z", []string{"2026-06-02T00:30:00Z"}},
		{"skipped hour", "CRON_TZ=Europe/Berlin 30 2 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"skipped hour, twice in it", "CRON_TZ=Europe/Berlin 15,45 2,3 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-29T01:15:00Z", "2026-03-29T01:45:00Z", "2026-03-30T00:15:00Z"}},
		{"repeated hour", "CRON_TZ=Europe/Berlin 30 2 * * *", "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"from within the repeated hour", "CRON_TZ=Europe/Berlin 10,30 2 * * *", "2026-10-25T01:20:00Z", []string{"2026-10-26T01:10:00Z"}},
		{"hourly over the skipped hour", "CRON_TZ=Europe/Berlin 30 * * * *", "2026-03-29T00:00:00Z", []string{"2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z", "2026-03-29T02:30:00Z"}},
		{"hourly over the repeated hour", "CRON_TZ=Europe/Berlin 30 * * * *", "2026-10-25T00:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"}},
		{"a day without midnight", "CRON_TZ=America/Santiago 0 0 * * *", "2026-09-05T12:00:00Z", []string{"2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"}},
		{"hourly on a day without midnight", "CRON_TZ=America/Santiago 0 * 6 9 *", "2026-09-05T12:00:00Z", []string{"2026-09-06T04:00:00Z", "2026-09-06T05:00:00Z"}},
		{"a jump of half an hour", "CRON_TZ=Australia/Lord_Howe 15 2 * * *", "2026-10-03T00:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{"a day that did not exist", "CRON_TZ=Pacific/Apia 0 12 30 12 *", "2011-12-01T00:00:00Z", []string{"2011-12-30T10:00:00Z", "2012-12-29T22:00:00Z"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec, at := parse(t, tt.spec), ms(t, tt.from)
			for _, want := range tt.want {
				at = spec.Next(at)
				got := ""
				if at != 0 {
					got = time.UnixMilli(at).UTC().Format(time.RFC3339)
				}
				if got != want {
					t.Fatalf("%s: %q, want %q", tt.spec, got, want)
				}
			}
		})
	}
}

// From any start, instants strictly increase, none is left out, and Last is the last of those
// that Next returns: over a year with both clock changes.
func TestSpecLastAndOrder(t *testing.T) {
	const step = 41 * time.Minute
	for _, s := range []string{
		"CRON_TZ=Europe/Berlin 30 2 * * *", "CRON_TZ=Europe/Berlin */20 * * * *", "CRON_TZ=America/Santiago 10 0,1 * * *",
		"CRON_TZ=Australia/Lord_Howe 5,35 1-3 * * 0", "@every 7h", "@monthly",
	} {
		spec := parse(t, s)
		begin := ms(t, "2026-02-27T00:00:00Z")
		due := spec.Next(begin)
		for at := begin; at < ms(t, "2026-11-10T00:00:00Z"); at += step.Milliseconds() {
			next := spec.Next(at)
			if next <= at {
				t.Fatalf("%s: after %d comes %d", s, at, next)
			}
			for ; !strings.HasPrefix(s, "@every") && due <= at; due = spec.Next(due) {
				continue
			}
			if !strings.HasPrefix(s, "@every") && next != due {
				t.Fatalf("%s: next after %d is %d, but step by step it is %d", s, at, next, due)
			}
		}
		last := spec.Next(begin)
		first := last
		for i := range 200 {
			next := spec.Next(last)
			for _, now := range []int64{last, last + 1, next - 1} {
				if got := spec.Last(first, now); got != last {
					t.Fatalf("%s: last of %d at %d is %d, want %d", s, i, now, got, last)
				}
			}
			last = next
		}
	}
}

// Invalid schedules are refused, and the host's time zone has no effect.
func TestSpecRefuses(t *testing.T) {
	for _, s := range []string{
		"", " ", "* * * *", "* * * * * *", "60 * * * *", "@every", "@every 10ms", "@every -5s", "@reboot", "0 0 30 2 *", "soon",
		"CRON_TZ=", "CRON_TZ=UTC", "TZ=Nowhere/Else 0 0 * * *", "CRON_TZ=../../etc/passwd 0 0 * * *", "1960-01-01T00:00:00Z", strings.Repeat("*", 300),
	} {
		_, err := schedule.Parse(s)
		var wrong *schedule.SyntaxError
		if !errors.As(err, &wrong) || len(err.Error()) > 400 {
			t.Errorf("%q: %v", s, err)
		}
	}
	if at := parse(t, "2020-01-01T00:00:00.5+01:00").First(ms(t, "2026-01-01T00:00:00Z")); at != ms(t, "2019-12-31T23:00:00Z")+500 {
		t.Errorf("an instant that has passed: %d", at)
	}
	if at := parse(t, "@every 5s").First(1000); at != 6000 {
		t.Errorf("first of @every 5s: %d", at)
	}
}

// Parse accepts or refuses any text, and never panics.
func FuzzParseSpec(f *testing.F) {
	for _, s := range []string{"* * * * *", "CRON_TZ=Europe/Berlin 0 1 * * 1-5", "@every 1h", "@daily", "TZ=", "TZ=UTC", "2026-01-01T00:00:00Z", "*/0 * * * *"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		spec, err := schedule.Parse(s)
		if err != nil {
			return
		}
		const now = 1_800_000_000_000
		if next := spec.Next(now); next != 0 && next <= now {
			t.Errorf("%q: after %d comes %d", s, int64(now), next)
		}
	})
}
