package main

import (
	"bytes"
	"strings"
	"testing"
)

// Errors of exec itself have exit code 125, so that they differ from those of a command.
// Settings that cannot work are refused with what to use instead.
func TestExecRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no group", nil, 125, "missing group"},
		{"no group before the dashes", []string{"--", "true"}, 125, "missing group"},
		{"no command", []string{"g"}, 125, "missing command"},
		{"no dashes", []string{"g", "true"}, 125, "missing --"},
		{"an unknown flag", []string{"--nope", "g", "--", "true"}, 125, "--nope"},
		{"no group's name", []string{"Billing!", "--", "true"}, 125, "Billing!"},
		{"no candidate's name", []string{"--id=A B", "g", "--", "true"}, 125, "A B"},
		{"no key", []string{"--once=a/b", "g", "--", "true"}, 125, `once: "a/b"`},
		{"wait and no wait", []string{"--wait=1s", "--no-wait", "g", "--", "true"}, 125, "no-wait"},
		{"wait backwards", []string{"--wait=-1s", "g", "--", "true"}, 125, "wait: -1s"},
		{"restart sometimes", []string{"--restart=sometimes", "g", "--", "true"}, 125, `restart: "sometimes"`},
		{"grace without room", []string{"--ttl=4s", "--grace=3s", "g", "--", "true"}, 125, "--ttl=4.6s, or at most --grace=2.62s"},
		{"a TTL of less than nothing", []string{"--ttl=-1s", "g", "--", "true"}, 125, "must be from"},
		{"a TTL without room", []string{"--ttl=200ms", "--grace=0s", "g", "--", "true"}, 125, "--ttl="},
		{"no store", []string{"--no-wait", "--store=etcd://127.0.0.1:1", "--timeout=300ms", "g", "--", "true"}, 125, "127.0.0.1:1"},
		{"no store in time", []string{"--wait=1s", "--store=http://127.0.0.1:1", "g", "--", "true"}, 124, "the store cannot be reached within 1s; the command was not run: no instance of the service answered: http://127.0.0.1:1: dial tcp"},
		{"a negative stop timeout", []string{"--stop-timeout=-1s", "g", "--", "true"}, 125, "stop-timeout: -1s"},
		{"a negative expiry", []string{"--once=k", "--once-for=-1s", "g", "--", "true"}, 125, "once-for: -1s"},
		{"not found", []string{"--dev", "g", "--", "no-such-command"}, 127, "no-such-command"},
		{"cannot be run", []string{"--dev", "g", "--", "/dev/null"}, 126, "/dev/null"},
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

// An invalid environment variable is an error of exec itself.
func TestExecEnvironment(t *testing.T) {
	var stderr bytes.Buffer
	code := run(t.Context(), []string{"exec", "g", "--", "true"}, environment("TENURE_EXEC_TTL=soon"), strings.NewReader(""), &stderr, &stderr)
	if code != 125 || !strings.Contains(stderr.String(), `TENURE_EXEC_TTL="soon"`) {
		t.Errorf("exit code %d, %q", code, &stderr)
	}
}

// The settings that the error suggests are accepted.
func TestExecAdviceHolds(t *testing.T) {
	for _, flags := range [][]string{{"--ttl=4.6s", "--grace=3s"}, {"--ttl=4s", "--grace=2.62s"}} {
		var stderr bytes.Buffer
		args := append(append([]string{"exec", "--no-wait", "--store=etcd://127.0.0.1:1", "--timeout=200ms"}, flags...), "g", "--", "true")
		if run(t.Context(), args, environment(), strings.NewReader(""), &stderr, &stderr); strings.Contains(stderr.String(), "ttl") {
			t.Errorf("%v: %s", flags, &stderr)
		}
	}
}
