package main

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/store/kv"
)

// revision is set by the linker (-X main.revision=…) in builds that the go command does
// not stamp with a revision.
var revision string

// build describes this program.
type build struct {
	Version  string            `json:"version"`
	Commit   string            `json:"commit"`
	Modified bool              `json:"modified,omitempty"`
	Go       string            `json:"go"`
	Platform string            `json:"platform"`
	Format   int               `json:"record_format"`
	Engines  map[string]string `json:"engines"`
}

// libraries are the modules whose versions a bug report needs.
var libraries = []struct{ path, name string }{
	{"go.etcd.io/etcd/client/v3", "etcd client"},
	{"go.etcd.io/etcd/server/v3", "etcd server"},
	{"github.com/hashicorp/raft", "raft"},
	{"modernc.org/sqlite", "sqlite"},
	{"github.com/jackc/pgx/v5", "pgx"},
}

func thisBuild() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return describe(info)
}

func describe(info *debug.BuildInfo) build {
	b := build{
		Version: cmp.Or(info.Main.Version, "(devel)"), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Format: kv.Format, Engines: map[string]string{},
	}
	for _, e := range libraries {
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
	b.Commit = cmp.Or(b.Commit, revision, released(info.Main), "unknown")
	return b
}

var pseudoVersion = regexp.MustCompile(`[.-][0-9]{14}-([0-9a-f]{12})$`)

// released returns the revision of a module that was downloaded: the commit in a
// pseudo-version, or the tag.
func released(m debug.Module) string {
	if m.Version == "" || m.Version == "(devel)" {
		return ""
	}
	if commit := pseudoVersion.FindStringSubmatch(m.Version); commit != nil {
		return commit[1]
	}
	return path.Base(m.Path) + "/" + m.Version
}

func newVersion(env cli.Env) *cobra.Command {
	var out cli.Output
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show the version, the revision and the record format of this program.",
		Example: `  tenure version -o json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.Open(cmd); err != nil {
				return err
			}
			b := thisBuild()
			if !out.Table() {
				return cli.Table[build]{Name: func(b build) string { return b.Version }}.One(&out, b)
			}
			if b.Modified {
				b.Commit += " (modified)"
			}
			lines := [][2]string{{"tenure", b.Version}, {"commit", b.Commit}, {"go", b.Go + " " + b.Platform}}
			for _, e := range libraries {
				if v := b.Engines[e.name]; v != "" {
					lines = append(lines, [2]string{e.name, v})
				}
			}
			var text strings.Builder
			for _, l := range append(lines, [2]string{"record format", strconv.Itoa(b.Format)}) {
				fmt.Fprintf(&text, "%-14s %s\n", l[0], l[1])
			}
			return out.Print(text.String())
		},
	}
	out.Flag(cmd, env)
	return cmd
}
