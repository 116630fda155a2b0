package check

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// A leader that gives up because a write was refused had been deposed, so G5 does not apply. A
// leader whose write is refused after it gave up violates G5.
func TestBatonDeposed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ended time.Duration // of the refused write, after the end of the term
		want  verdict.Result
	}{
		{"refused, then resigned", -time.Millisecond, verdict.Pass},
		{"resigned, then refused", time.Second, verdict.Fail},
	} {
		h := good(1)
		end := h["nodes"][find(h, "nodes", cause("resigned"))[0]].(history.Belief)
		late := history.Attempt{Node: end.Node, Token: end.Token, At: successor(h, end).At.Add(30 * time.Millisecond)}
		late.End, late.Outcome = late.At.Add(time.Millisecond), history.OutcomeRefused
		h.inTime(late)
		if tt.ended < 0 {
			h.inTime(history.Attempt{Node: end.Node, Token: end.Token, At: end.At.Add(2 * tt.ended), End: end.At.Add(tt.ended), Outcome: history.OutcomeRefused})
		}
		v, _ := h.check(t).Verdict("baton")
		if v.Result != tt.want || (v.Count("deposed") == 1) != (tt.want == verdict.Pass) {
			t.Errorf("%s: %v, want %s", tt.name, v, tt.want)
		}
	}
}

// A leader that was stopped during its handover may have lost its session, so a late last write
// is excepted. The same write of a running leader is not, nor is a write long after the
// leader was resumed.
func TestBatonPaused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		paused bool
		late   time.Duration // after the successor's term began
		want   verdict.Result
	}{
		{"paused", true, 30 * time.Millisecond, verdict.Pass},
		{"not paused", false, 30 * time.Millisecond, verdict.Fail},
		{"long after", true, 300 * time.Millisecond, verdict.Fail},
	} {
		h := good(1)
		end := h["nodes"][find(h, "nodes", cause("resigned"))[0]].(history.Belief)
		next := successor(h, end)
		h.inTime(history.Attempt{Node: end.Node, Token: end.Token, At: next.At.Add(tt.late)})
		if tt.paused {
			h.insert("faults", len(h["faults"]), history.Fault{ID: "late", Name: "pause", Class: history.ClassPause, Target: end.Node, Begun: end.At, Healed: next.At.Add(10 * time.Millisecond), Evidence: "state T"})
		}
		v, _ := h.check(t).Verdict("baton")
		if v.Result != tt.want || (v.Count("excepted") == 1) != (tt.want == verdict.Pass) {
			t.Errorf("%s: %v, want %s", tt.name, v, tt.want)
		}
	}
}
