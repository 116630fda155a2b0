package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tenurehq/tenure/server/cli"
)

// mainEnv makes the test binary run as the program.
const mainEnv = "TENURE_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		return
	}
	testscript.Main(m, map[string]func(){"tenure": main})
}

func environment(kv ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, s := range kv {
			if k, v, _ := strings.Cut(s, "="); k == name {
				return v, true
			}
		}
		return "", false
	}
}

// Wrong usage has exit code 2 and an error on standard error.
func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		want string
	}{
		{"no command", nil, nil, "missing command"},
		{"unknown command", []string{"nope"}, nil, `"nope"`},
		{"nearly a command", []string{"serv"}, nil, "did you mean `tenure serve`?"},
		{"unknown flag", []string{"serve", "--nope"}, nil, "--nope"},
		{"a long flag with one dash", []string{"serve", "-listen", "127.0.0.1:0"}, nil, "unknown shorthand flag"},
		{"an argument", []string{"serve", "x"}, nil, `"x"`},
		{"bad duration", []string{"leader", "--timeout", "long", "g"}, nil, "timeout"},
		{"bad duration in the environment", []string{"leader", "g"}, []string{"TENURE_LEADER_TIMEOUT=long"}, `environment TENURE_LEADER_TIMEOUT="long"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), tt.args, environment(tt.env...), strings.NewReader(""), &stdout, &stderr)
			if code != cli.ExitUsage || !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("exit code %d, %q; want %d and %q", code, &stderr, cli.ExitUsage, tt.want)
			}
			if stdout.Len() > 0 && len(tt.args) > 0 {
				t.Errorf("standard output: %q", &stdout)
			}
		})
	}
}
