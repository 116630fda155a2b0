package main

import (
	"strings"
	"testing"
)

// The seed decides the plan of a storm, which is printed without a fleet. Wrong usage is an
// error before anything is started.
func TestStormPlan(t *testing.T) {
	plan := func(seed string) string {
		code, out, stderr := labRun(t, nil, "storm", "--plan", "--for=5m", "--engine=raft", "--seed="+seed)
		if code != exitOK || strings.Count(out, "\n") < 50 || !strings.Contains(out, "kill-leader") {
			t.Errorf("code %d, %s%s", code, out, stderr)
		}
		return out
	}
	if first := plan("3"); first != plan("3") || first == plan("4") {
		t.Error("the seed does not decide the plan")
	}
	for _, args := range [][]string{
		{"storm", "--engine=mysql"}, {"storm", "--for=1s"}, {"storm", "--for=soon"}, {"storm", "now"}, {"storm", "-o", "xml"},
	} {
		if code, _, stderr := labRun(t, nil, args...); code != exitUsage || stderr == "" {
			t.Errorf("lab %v: code %d, %q", args, code, stderr)
		}
	}
}
