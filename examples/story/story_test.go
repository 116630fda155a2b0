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

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

const ttl = 500 * time.Millisecond

func unset(string) string { return "" }

// The story prints every change on one line, in order, and nothing else: no colours without
// a terminal, and no logs.
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
		`TTL of 500ms`,
		`^$`,
		stamp + `node-1, node-2 and node-3 .*"billing"$`,
		stamp + `node-\d leads with token 1: `,
		stamp + `node-\d crashes`,
		stamp + `node-\d leads with token 2: ` + lasts,
		stamp + `node-\d starts again`,
		stamp + `node-\d checks its term`,
		stamp + `node-\d leads with token 3: ` + lasts,
		stamp + `node-\d resumes`,
		stamp + `refused: .* token 2, .* token 3$`,
		stamp + `node-\d checks its term again \(expired: `,
		stamp + `node-\d hands over to node-\d`,
		stamp + `node-\d leads with token 4: ` + lasts + ` after node-\d`,
		stamp + `all nodes stop$`,
		`^$`,
		`^what happened +leader +token +without a leader$`,
		`^first election +node-\d +1 +` + lasts + `$`,
		`^crash of node-\d +node-\d to node-\d +1 to 2 +` + lasts + `$`,
		`^pause of node-\d +node-\d to node-\d +2 to 3 +` + lasts + `$`,
		`^transfer by node-\d +node-\d to node-\d +3 to 4 +` + lasts + `$`,
		`^$`,
		`^The sink accepted \d+ writes and refused 1\.$`,
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

// powerless is a store that grants no group.
type powerless struct{ store.Store }

func (powerless) Acquire(context.Context, store.SessionID, ...store.Record) ([]store.Record, error) {
	return nil, errors.New("no quorum")
}

// If an event does not come, the story ends in bounded time with an error that names it.
func TestStoryGoesWrong(t *testing.T) {
	store := mem.New(mem.Options{})
	defer store.Close()
	var out bytes.Buffer
	s := newStory(powerless{store}, ttl, &printer{out: &out, start: time.Now()})
	start := time.Now()
	err := s.run(t.Context())
	if err == nil || !strings.Contains(err.Error(), string(began)) {
		t.Errorf("it ends with: %v", err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v to notice", took)
	}
}

// An interrupted story ends with an error.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, nil, &out, &errs, unset, ttl); code != 1 || !strings.HasPrefix(errs.String(), "error: ") {
		t.Errorf("exit code %d, %q", code, &errs)
	}
}

// -h prints the usage on standard output; an unknown argument prints it on standard error.
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

// Only terminals get colours, unless NO_COLOR is set or TERM is dumb.
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
	if n := (&printer{colour: true}); n.paint(red, "no") != red+"no"+off {
		t.Error("nothing is painted")
	}
}
