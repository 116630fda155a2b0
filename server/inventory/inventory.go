// Package inventory keeps lists of what users depend on: routes, commands, flags,
// environment variables and metrics. Tests derive the lists from the code and compare
// them with the files in docs/inventory, so that a change that loses an entry shows it.
//
// Limitations: routes and metrics other than the service's are read from the source, so
// only those whose method, path or name is a string literal are found.
package inventory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/server/cli"
)

// Check compares the lines, in any order, with docs/inventory/NAME.txt, or writes them
// there. The error names every line that is lost or new.
func Check(name string, lines []string, update bool) error {
	top, err := Top()
	if err != nil {
		return err
	}
	lines = slices.Compact(slices.Sorted(slices.Values(lines)))
	path := filepath.Join(top, "docs", "inventory", name+".txt")
	if update {
		return os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	missing, added := Diff(strings.Split(strings.TrimSpace(string(text)), "\n"), lines)
	if len(missing)+len(added) == 0 {
		return nil
	}
	return fmt.Errorf("docs/inventory/%s.txt: lost %q, not listed %q; if this is on purpose, run the test with -update and list the change in CHANGELOG.md", name, missing, added)
}

// Diff returns the lines of want that got lacks, and the lines of got that want lacks.
func Diff(want, got []string) (missing, added []string) {
	without := func(a, b []string) []string {
		return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
	}
	return without(want, got), without(got, want)
}

// Top returns the top folder of the repository: the one above the working directory
// that has docs/inventory.
func Top() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil && filepath.Dir(dir) != dir; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "docs", "inventory")); err == nil {
			return dir, nil
		}
	}
	return "", errors.Join(err, errors.New("no folder above the working directory has docs/inventory"))
}

// Commands lists a command, those below it and their flags, hidden ones included, each
// flag with the environment variables that set it (see cli.FromEnvironment).
func Commands(c *cobra.Command) []string {
	lines := []string{c.CommandPath()}
	if !c.HasParent() {
		c.InitDefaultHelpCmd()
		c.InitDefaultCompletionCmd()
	}
	c.InitDefaultHelpFlag()
	c.Flags().VisitAll(func(f *pflag.Flag) {
		line := c.CommandPath() + " --" + f.Name
		if f.Shorthand != "" {
			line += " -" + f.Shorthand
		}
		if f.Name != "help" && c.PreRunE != nil {
			line += " " + strings.Join(cli.Variables(c, f), " ")
		}
		lines = append(lines, line)
	})
	for _, below := range c.Commands() {
		lines = append(lines, Commands(below)...)
	}
	return lines
}

var helpFlag = regexp.MustCompile(`(?m)^  -([a-z0-9-]+)`)

// Flags lists the flags in the help of a command that package flag has written, and the
// variables that the command asked the environment for.
func Flags(command, help string, variables []string) []string {
	lines := []string{command}
	for _, m := range helpFlag.FindAllStringSubmatch(help, -1) {
		lines = append(lines, command+" -"+m[1])
	}
	for _, v := range variables {
		lines = append(lines, command+" "+v)
	}
	return lines
}
