package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/mem"
)

const ttl = 500 * time.Millisecond

func unset(string) string { return "" }

// The story comes to its end, tells every change on a line of its own, in order,
// and nothing else: no colours where there is no terminal, and no logs.
func TestStory(t *testing.T) {
	var logs bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&logs, nil)))
	defer slog.SetDefault(before)

	var out, errs bytes.Buffer
	if code := run(t.Context(), nil, &out, &errs, unset, ttl); code != 0 {
		t.Fatalf("exit code %d: %s\n%s", code, &errs, &out)
	}
	const stamp, lasts = `^ +\d+\.\ds  `, `[0-9.]+(s|ms|µs)`
	lines := strings.Split(out.String(), "\n")
	for _, want := range []string{
		`^An election, told as it happens\. Sessions have a TTL of 500ms here\.$`,
		`^$`,
		stamp + `node-1, node-2 and node-3 stand for group "billing"$`,
		stamp + `node-\d leads with token 1: `,
		stamp + `node-\d crashes, without a word`,
		stamp + `node-\d leads with token 2: ` + lasts + ` after the crash`,
		stamp + `node-\d is started again`,
		stamp + `node-\d checks its term: it leads\. Before it can write, the whole process is paused$`,
		stamp + `node-\d leads with token 3: ` + lasts + ` after the pause began`,
		stamp + `node-\d wakes up`,
		stamp + `refused: the write carries token 2, the sink has seen token 3$`,
		stamp + `node-\d looks at the clock \(expired: `,
		stamp + `node-\d passes the baton to node-\d: it stops working first$`,
		stamp + `node-\d leads with token 4: ` + lasts + ` after node-\d had stopped$`,
		stamp + `the end: everybody stops$`,
		`^$`,
		`^what happened +leader +token +without a leader$`,
		`^first election +node-\d +1 +` + lasts + `$`,
		`^crash of node-\d +node-\d to node-\d +1 to 2 +` + lasts + `$`,
		`^pause of node-\d +node-\d to node-\d +2 to 3 +` + lasts + `$`,
		`^baton of node-\d +node-\d to node-\d +3 to 4 +` + lasts + `$`,
		`^$`,
		`^The sink took \d+ writes, and refused 1\.$`,
		`^$`,
		`^Read next:$`,
	} {
		if len(lines) == 0 || !regexp.MustCompile(want).MatchString(lines[0]) {
			t.Fatalf("the next line is not %s in:\n%s", want, &out)
		}
		lines = lines[1:]
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("colours where there is no terminal")
	}
	if logs.Len()+errs.Len() > 0 {
		t.Errorf("it logs: %s%s", &logs, &errs)
	}
}

// powerless is a store that grants nothing.
type powerless struct{ lease.Store }

func (powerless) Acquire(context.Context, lease.SessionID, ...lease.Record) ([]lease.Record, error) {
	return nil, errors.New("no quorum")
}

// A story whose events do not come ends with an error that names the first, and
// in bounded time.
func TestStoryGoesWrong(t *testing.T) {
	store := mem.New(mem.Options{})
	defer store.Shutdown()
	var out bytes.Buffer
	s := newStory(powerless{store}, ttl, &narrator{out: &out, start: time.Now()})
	start := time.Now()
	err := s.tell(t.Context())
	if err == nil || !strings.Contains(err.Error(), "for anybody to lead") {
		t.Errorf("it ends with: %v", err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v to notice", took)
	}
}

// Whoever interrupts the story does not have to hear its end.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, nil, &out, &errs, unset, ttl); code != 1 || !strings.HasPrefix(errs.String(), "error: ") {
		t.Errorf("exit code %d, %q", code, &errs)
	}
}

// -h says what it is on the output; what it does not know, it says on the other.
func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		arg  string
		code int
	}{{"-h", 0}, {"-help", 0}, {"-fast", 2}, {"fast", 2}} {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{tt.arg}, &out, &errs, unset, ttl)
		said := out.String()
		if tt.code != 0 {
			said = errs.String()
		}
		if code != tt.code || said != usage || out.Len()+errs.Len() != len(usage) {
			t.Errorf("%s: exit code %d, want %d\n%s%s", tt.arg, code, tt.code, &out, &errs)
		}
	}
}

// Colours are for terminals whose users have not said no.
func TestColours(t *testing.T) {
	device, err := os.Open(os.DevNull) // a character device, as a terminal is
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = device.Close() }()
	env := func(key, value string) func(string) string {
		return func(k string) string {
			if k == key {
				return value
			}
			return ""
		}
	}
	switch {
	case !colours(device, unset):
		t.Error("none on a terminal")
	case colours(device, env("NO_COLOR", "1")):
		t.Error("NO_COLOR is not honoured")
	case colours(device, env("TERM", "dumb")):
		t.Error("on a dumb terminal")
	case colours(&bytes.Buffer{}, unset):
		t.Error("in a pipe")
	}
	if n := (&narrator{colour: true}); n.paint(red, "no") != red+"no"+off {
		t.Error("nothing is painted")
	}
}
