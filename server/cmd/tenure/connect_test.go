package main

import (
	"bytes"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/server/supervise"
)

// Whoever has named no store, and finds nobody at the default address, is told how to
// start a service and how to name an engine: by what looks and by exec alike.
func TestNobodyServes(t *testing.T) {
	free, err := net.Listen("tcp", defaultListen)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("SOMEBODY SERVES AT THE DEFAULT ADDRESS, and CI is set: ", err)
		}
		t.Skip("SKIPPED, NOTHING WAS TESTED: somebody serves at the default address: ", err)
	}
	_ = free.Close()
	for _, tt := range []struct {
		code int
		args []string
	}{
		{exitUnavailable, []string{"leader", "billing"}},
		{exitUnavailable, []string{"groups"}},
		{supervise.CodeFailed, []string{"exec", "billing", "--", "true"}},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), tt.args, environment(), strings.NewReader(""), &stdout, &stderr)
		if code != tt.code || stdout.Len() > 0 {
			t.Errorf("%v: exit code %d, want %d; %s", tt.args, code, tt.code, &stdout)
		}
		for _, want := range []string{"connection refused", "start one with `tenure serve`,", "--store=etcd://"} {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("%v: %q is not in\n%s", tt.args, want, &stderr)
			}
		}
	}
}

// A service on another machine is started there.
func TestNobodyServesElsewhere(t *testing.T) {
	for store, want := range map[string]string{
		"http://10.0.0.1:7400":   "start one there with `tenure serve`,",
		"http://localhost:7401":  "start one with `tenure serve --listen=localhost:7401`,",
		"http://[::1]:7400,b:80": "start one with `tenure serve --listen=[::1]:7400`,",
		defaultStore:             "start one with `tenure serve`,",
	} {
		at, err := (&connection{store: store}).target()
		if got := at.start(); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %q, %v", store, got, err)
		}
	}
}
