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

// The same is said once a minute, whatever else differs; something else is said at once,
// and what comes in turns is said each time.
func TestCalm(t *testing.T) {
	var out bytes.Buffer
	h := calmly(slog.New(slog.NewTextHandler(&out, nil))).With("candidate", "a").Handler()
	began := time.Now()
	for _, tt := range []struct {
		at    time.Duration
		what  string
		err   string
		count int
		said  bool
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
		r := slog.NewRecord(began.Add(tt.at), slog.LevelWarn, tt.what, 0)
		r.AddAttrs(slog.Int("count", tt.count), slog.Any("error", errors.New(tt.err)))
		if err := h.Handle(context.Background(), r); err != nil || out.Len() > 0 != tt.said {
			t.Errorf("%+v: %q, %v", tt, &out, err)
		}
		if tt.said && !strings.Contains(out.String(), "candidate=a") {
			t.Errorf("%+v: %q", tt, &out)
		}
	}
}
