package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/store/kv"
)

// build is what this program is made of.
type build struct {
	Version  string            `json:"version"`
	Commit   string            `json:"commit"`
	Modified bool              `json:"modified,omitempty"`
	Go       string            `json:"go"`
	Platform string            `json:"platform"`
	Format   int               `json:"record_format"`
	Engines  map[string]string `json:"engines"`
}

// engines are the modules whose version matters to whoever reads a report.
func engines() []struct{ path, name string } {
	return []struct{ path, name string }{
		{"go.etcd.io/etcd/client/v3", "etcd client"},
		{"go.etcd.io/etcd/server/v3", "etcd server"},
		{"github.com/hashicorp/raft", "raft"},
		{"modernc.org/sqlite", "sqlite"},
		{"github.com/jackc/pgx/v5", "pgx"},
	}
}

func builtFrom() build {
	b := build{
		Version: "(devel)", Commit: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Format: kv.Format, Engines: map[string]string{},
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, e := range engines() {
		for _, m := range info.Deps {
			if m.Path == e.path {
				b.Engines[e.name] = m.Version
			}
		}
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func newVersion(env func(string) (string, bool)) *cobra.Command {
	var out cli.Output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "What this program is built from, and the record format that it writes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.Validate(); err != nil {
				return cli.Exit(exitUsage, err)
			}
			b := builtFrom()
			if !out.People() {
				return cli.Sheet[build]{Name: func(b build) string { return b.Version }}.One(cmd.OutOrStdout(), &out, b)
			}
			type line struct{ what, value string }
			commit := b.Commit
			if b.Modified {
				commit += " (modified)"
			}
			lines := []line{{"tenure", b.Version}, {"commit", commit}, {"go", b.Go + " " + b.Platform}}
			for _, e := range engines() {
				if v := b.Engines[e.name]; v != "" {
					lines = append(lines, line{e.name, v})
				}
			}
			for _, l := range append(lines, line{"record format", strconv.Itoa(b.Format)}) {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%-14s %s\n", l.what, l.value); err != nil {
					return err
				}
			}
			return nil
		},
	}
	out.Flag(cmd, env)
	return cmd
}
