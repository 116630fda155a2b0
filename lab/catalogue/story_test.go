package catalogue

import (
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

// The story of a pause has what leader, engine, standby, callers and workers saw, in order,
// and whether a worker refused an order.
func TestStory(t *testing.T) {
	t.Parallel()
	s := func(n float64) clock.Instant {
		return clock.Instant(100*time.Second) + clock.Instant(n*float64(time.Second))
	}
	o := trial.Outcome{
		Trial:  trial.Trial{Name: "freeze"},
		Rounds: []trial.Round{{Node: "node-1", Token: 1, Successor: "node-2", Next: 2}},
		Report: verdict.Report{
			Faults: []history.Fault{{Name: "pause", Begun: s(0), Healed: s(45.01)}},
			Terms: []verdict.Term{
				{Token: 1, Node: "node-1", Began: s(-9), Ended: s(45.002), Cause: "expired", Attempts: 5, Refused: 1, RefusedAt: []clock.Instant{s(45.001)}},
				{Token: 2, Node: "node-2", Vacant: s(8), Began: s(8.01), FirstAttempt: s(8.02), FirstAnswer: s(8.03), Attempts: 5},
			},
		},
		Orders: []trial.WorkerCounts{
			{Worker: "worker-1", At: s(-2), Token: 1, Accepted: 3, Runs: 10},
			{Worker: "worker-2", At: s(-1), Token: 1, Accepted: 1, Runs: 12},
			{Worker: "worker-1", At: s(8.2), Token: 2, Accepted: 4, Runs: 30},
			{Worker: "worker-2", At: s(8.3), Token: 2, Accepted: 2, Runs: 30},
			{Worker: "worker-1", At: s(45.1), Token: 2, Accepted: 4, Refused: 1, Runs: 99},
		},
	}
	var lines []string
	var sum measure.Summary
	story(measure.Judge{Summary: &sum, Trial: o.Name}, o)
	for _, row := range sum.Tables[0].Rows {
		lines = append(lines, strings.Join(row, " "))
	}
	got := strings.Join(lines, "\n")
	at := 0
	for _, want := range []string{
		"-2.000 worker-1 takes its order 3, the last of token 1", "0.000 leader node-1 has checked", "8.000 engine", "8.010 standby node-2 leads with token 2", "8.030 callers",
		"8.200 worker-1 takes an order of token 2, and none below from now on; meanwhile it went on with its standing order, 20 times",
		"45.001 leader node-1 goes on", "45.001 leader node-1 sends its write with token 1, and is refused", "45.002 leader node-1 knows",
		"45.100 worker-1 refuses orders with a token below 2 (1 in all)", "worker-2 has taken 2 orders (0 came twice and were done once) and refused none",
	} {
		i := strings.Index(got[at:], want)
		if i < 0 {
			t.Fatalf("%q is missing, or too early, in\n%s", want, got)
		}
		at += i
	}
	if strings.Contains(got, "worker-1 has taken") {
		t.Errorf("a worker that refused is said to have refused none:\n%s", got)
	}
}
