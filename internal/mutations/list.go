//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// folder holds the lists, relative to the top of the repository.
const folder = "tools/mutations"

// mutation is one block of a list: replace old by new in file, and test fails.
type mutation struct {
	list string // the file that names it
	name string
	file string
	old  string
	new  string
	test string
}

// readLists reads every list of the repository.
func readLists(top string) ([]mutation, error) {
	lists, err := filepath.Glob(filepath.Join(top, folder, "*.txt"))
	if err != nil {
		return nil, err
	}
	var all []mutation
	var errs []error
	names := map[string]bool{}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			return nil, err
		}
		found, err := parse(filepath.Base(list), string(text))
		errs = append(errs, err)
		for _, m := range found {
			if names[m.name] {
				errs = append(errs, fmt.Errorf("%s: two mutations are named %q", m.list, m.name))
			}
			names[m.name] = true
		}
		all = append(all, found...)
	}
	return all, errors.Join(errs...)
}

// parse reads one list. A block begins with "== name". A key that is repeated
// continues the text of the line before it. Empty lines and lines that begin with
// "#" are comments.
func parse(list, text string) ([]mutation, error) {
	var all []mutation
	var errs []error
	seen := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		fail := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s:%d: %s", list, i+1, fmt.Sprintf(format, args...)))
		}
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if name, ok := strings.CutPrefix(line, "== "); ok {
			all = append(all, mutation{list: list, name: strings.TrimSpace(name)})
			seen = map[string]bool{}
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok || len(all) == 0 {
			fail("want a line of the form key: text after a line == name, have %q", line)
			continue
		}
		m := &all[len(all)-1]
		field := map[string]*string{"file": &m.file, "old": &m.old, "new": &m.new, "test": &m.test}[key]
		if field == nil {
			fail("unknown key %q; want file, old, new or test", key)
			continue
		}
		value = strings.TrimPrefix(value, " ")
		if seen[key] {
			value = *field + "\n" + value
		}
		seen[key] = true
		*field = value
	}
	for _, m := range all {
		if m.name == "" || m.file == "" || m.old == "" || m.test == "" || m.old == m.new {
			errs = append(errs, fmt.Errorf("%s: mutation %q needs a name, file, old, another new, and test", list, m.name))
		}
	}
	return all, errors.Join(errs...)
}

// apply returns the text of the file with the mutation in it.
func (m *mutation) apply(text string) (string, error) {
	if n := strings.Count(text, m.old); n != 1 {
		return "", fmt.Errorf("%s: %s: the old text occurs %d times in %s, want once", m.list, m.name, n, m.file)
	}
	return strings.Replace(text, m.old, m.new, 1), nil
}

// selected keeps the mutations whose name or list contains one of the filters.
func selected(all []mutation, filters []string) []mutation {
	if len(filters) == 0 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(m mutation) bool {
		return !slices.ContainsFunc(filters, func(f string) bool {
			return strings.Contains(m.name, f) || strings.Contains(m.list, f)
		})
	})
}
