package main

import (
	"bytes"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/server/supervise"
)

// Without --store and without a service at the default address, every command says how to
// start a service and how to use an engine.
func TestNoService(t *testing.T) {
	free, err := net.Listen("tcp", storecli.DefaultListen)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("A SERVICE LISTENS AT THE DEFAULT ADDRESS, and CI is set: ", err)
		}
		t.Skip("SKIPPED, NOTHING WAS TESTED: a service listens at the default address: ", err)
	}
	_ = free.Close()
	for _, tt := range []struct {
		code int
		args []string
	}{
		{cli.ExitUnavailable, []string{"leader", "billing"}},
		{cli.ExitUnavailable, []string{"groups"}},
		{supervise.CodeFailed, []string{"exec", "--no-wait", "billing", "--", "true"}},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), tt.args, environment(), strings.NewReader(""), &stdout, &stderr)
		if code != tt.code || stdout.Len() > 0 {
			t.Errorf("%v: exit code %d, want %d; %s", tt.args, code, tt.code, &stdout)
		}
		for _, want := range []string{"connection refused", "start one with `tenure serve`,", "etcd://host:port"} {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("%v: %q is not in\n%s", tt.args, want, &stderr)
			}
		}
	}
}
