package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// A wrong number of arguments is reported as missing or too many, for every rule of cobra.
func TestArguments(t *testing.T) {
	for name, tt := range map[string]struct {
		rule cobra.PositionalArgs
		args string
		want string
	}{
		"none of one":       {cobra.ExactArgs(1), "", "error: missing argument\n"},
		"two of one":        {cobra.ExactArgs(1), "a b", "error: too many arguments\n"},
		"none of many":      {cobra.MinimumNArgs(1), "", "error: missing argument\n"},
		"two of at most":    {cobra.MaximumNArgs(1), "a b", "error: too many arguments\n"},
		"one of two, three": {cobra.RangeArgs(2, 3), "a", "error: missing argument\n"},
		"four of two":       {cobra.RangeArgs(2, 3), "a b c d", "error: too many arguments\n"},
	} {
		root := &cobra.Command{Use: "p", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(&cobra.Command{Use: "c", Args: tt.rule, Run: func(*cobra.Command, []string) {}})
		var out bytes.Buffer
		code := Run(context.Background(), root, strings.Fields("c "+tt.args), nil, &out, &out)
		if code != ExitUsage || !strings.HasPrefix(out.String(), tt.want) || !strings.Contains(out.String(), "usage: p c") {
			t.Errorf("%s: %d, %q", name, code, out.String())
		}
	}
}

// A line that a driver repeats is printed once.
func TestRepeatedLines(t *testing.T) {
	root := &cobra.Command{Use: "p", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		return Exit(ExitUnavailable, errors.New("connect:\n\tno answer\n\tno answer"))
	}}
	var out bytes.Buffer
	if code := Run(context.Background(), root, nil, nil, &out, &out); code != ExitUnavailable || out.String() != "error: connect:\nerror: no answer\n" {
		t.Errorf("%d, %q", code, out.String())
	}
}
