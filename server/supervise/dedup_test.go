package supervise

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A repeated line is logged once a minute, whatever its other attributes. Another line is
// logged at once, and so are lines that alternate.
func TestDedup(t *testing.T) {
	var out bytes.Buffer
	h := dedupLogger(slog.New(slog.NewTextHandler(&out, nil))).With("candidate", "a").Handler()
	began := time.Now()
	for _, tt := range []struct {
		at     time.Duration
		text   string
		err    string
		count  int
		logged bool
	}{
		{0, "call failed", "cordoned", 1, true},
		{time.Second, "call failed", "cordoned", 2, false},
		{2 * time.Second, "call failed", "no member", 3, true},
		{3 * time.Second, "call failed", "cordoned", 4, true},
		{59 * time.Second, "call failed", "cordoned", 5, false},
		{64 * time.Second, "call failed", "cordoned", 6, true},
		{65 * time.Second, "watch lost", "cordoned", 7, true},
	} {
		out.Reset()
		r := slog.NewRecord(began.Add(tt.at), slog.LevelWarn, tt.text, 0)
		r.AddAttrs(slog.Int("count", tt.count), slog.Any("error", errors.New(tt.err)))
		if err := h.Handle(context.Background(), r); err != nil || out.Len() > 0 != tt.logged {
			t.Errorf("%+v: %q, %v", tt, &out, err)
		}
		if tt.logged && !strings.Contains(out.String(), "candidate=a") {
			t.Errorf("%+v: %q", tt, &out)
		}
	}
}
