package main

import (
	"bytes"
	"strings"
	"testing"
)

// What exec itself gets wrong is 125, so that no code of a command is mistaken for it, and
// settings that cannot keep the promise are refused with what to take instead.
func TestExecRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no group", nil, 125, "which group?"},
		{"no group before the dashes", []string{"--", "true"}, 125, "which group?"},
		{"no command", []string{"g"}, 125, "which command?"},
		{"no dashes", []string{"g", "true"}, 125, "behind two dashes"},
		{"an unknown flag", []string{"--nope", "g", "--", "true"}, 125, "--nope"},
		{"no group's name", []string{"Billing!", "--", "true"}, 125, "Billing!"},
		{"no candidate's name", []string{"--id=A B", "g", "--", "true"}, 125, "A B"},
		{"no key", []string{"--once=a/b", "g", "--", "true"}, 125, `once: "a/b" is no key`},
		{"wait and no wait", []string{"--wait=1s", "--no-wait", "g", "--", "true"}, 125, "exclude each other"},
		{"wait backwards", []string{"--wait=-1s", "g", "--", "true"}, 125, "is negative"},
		{"restart sometimes", []string{"--restart=sometimes", "g", "--", "true"}, 125, "neither never nor on-lost"},
		{"grace without room", []string{"--ttl=4s", "--grace=3s", "g", "--", "true"}, 125, "take --ttl=4.6s or more, or --grace=2.62s or less"},
		{"a TTL of less than nothing", []string{"--ttl=-1s", "g", "--", "true"}, 125, "must be from"},
		{"a TTL without room", []string{"--ttl=200ms", "--grace=0s", "g", "--", "true"}, 125, "take --ttl="},
		{"no store", []string{"--store=etcd://127.0.0.1:1", "--timeout=300ms", "g", "--", "true"}, 125, "127.0.0.1:1"},
		{"not found", []string{"--dev", "g", "--", "no-such-command"}, 127, "no-such-command: no such command"},
		{"cannot be run", []string{"--dev", "g", "--", "/dev/null"}, 126, "/dev/null cannot be run"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), append([]string{"exec"}, tt.args...), environment(), strings.NewReader(""), &stdout, &stderr)
			if code != tt.code || !strings.Contains(stderr.String(), tt.want) || stdout.Len() > 0 {
				t.Errorf("exit code %d, %q, %q; want %d and %q", code, &stderr, &stdout, tt.code, tt.want)
			}
		})
	}
}

// A variable that makes no sense is exec's own failure too.
func TestExecEnvironment(t *testing.T) {
	var stderr bytes.Buffer
	code := run(t.Context(), []string{"exec", "g", "--", "true"}, environment("TENURE_EXEC_TTL=soon"), strings.NewReader(""), &stderr, &stderr)
	if code != 125 || !strings.Contains(stderr.String(), `TENURE_EXEC_TTL="soon"`) {
		t.Errorf("exit code %d, %q", code, &stderr)
	}
}

// What the advice says to take instead is taken.
func TestExecAdviceHolds(t *testing.T) {
	for _, flags := range [][]string{{"--ttl=4.6s", "--grace=3s"}, {"--ttl=4s", "--grace=2.62s"}} {
		var stderr bytes.Buffer
		args := append(append([]string{"exec", "--store=etcd://127.0.0.1:1", "--timeout=200ms"}, flags...), "g", "--", "true")
		if run(t.Context(), args, environment(), strings.NewReader(""), &stderr, &stderr); strings.Contains(stderr.String(), "ttl") {
			t.Errorf("%v: %s", flags, &stderr)
		}
	}
}
