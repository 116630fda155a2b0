package lab

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// Timeline writes lines with the seconds since it was made. It is safe for concurrent use.
// Errors of the writer are ignored, because there is no other place to report them.
type Timeline struct {
	mu    sync.Mutex
	w     io.Writer
	began clock.Instant
}

// NewTimeline begins at zero.
func NewTimeline(w io.Writer) *Timeline { return &Timeline{w: w, began: clock.System().Now()} }

// Say writes one line.
func (t *Timeline) Say(format string, args ...any) {
	text := strings.TrimRight(fmt.Sprintf(format, args...), "\n")
	t.Show(fmt.Sprintf("%8.3f s %s\n", t.Elapsed().Seconds(), strings.ReplaceAll(text, "\n", "\n           ")))
}

// Show writes text as it is.
func (t *Timeline) Show(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = io.WriteString(t.w, text)
}

// Elapsed is the time since the beginning.
func (t *Timeline) Elapsed() time.Duration { return clock.System().Now().Sub(t.began) }
