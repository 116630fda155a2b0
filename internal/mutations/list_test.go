//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Every mutation of the lists still applies: its old text occurs exactly once in its file.
func TestListsApply(t *testing.T) {
	top := filepath.Join("..", "..")
	all, err := readLists(top)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatalf("no mutation in %s: this test sees nothing", folder)
	}
	for _, m := range all {
		text, err := os.ReadFile(filepath.Join(top, m.file))
		if err != nil {
			t.Errorf("%s: %s: %v", m.list, m.name, err)
			continue
		}
		if _, err := m.apply(string(text)); err != nil {
			t.Errorf("%v; bring the list up to date", err)
		}
	}
}

// A block keeps its text: continued lines keep their tabs, and nothing is added.
func TestParse(t *testing.T) {
	const text = "# why\n== one\nfile: a.go\nold: \tif x {\nold: \t\treturn\nold: \t}\nnew:\ntest: go test ./a\n"
	all, err := parse("x.txt", text)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	want := mutation{list: "x.txt", name: "one", file: "a.go", old: "\tif x {\n\t\treturn\n\t}", test: "go test ./a"}
	if all[0] != want {
		t.Fatalf("got %+q, want %+q", all[0], want)
	}
	for _, bad := range []string{"file: a.go", "== one\nflie: a.go", "== one\nfile: a.go\nold: x\nnew: x\ntest: y", "== one\nfile: a.go\nold: x"} {
		if _, err := parse("x.txt", bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// A text that does not occur, or occurs twice, is an error of the list.
func TestApply(t *testing.T) {
	m := mutation{name: "one", file: "a.go", old: "x < y", new: "x > y"}
	for text, ok := range map[string]bool{"if x < y {": true, "if x > y {": false, "x < y && x < y": false} {
		got, err := m.apply(text)
		if (err == nil) != ok || ok && !strings.Contains(got, "x > y") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

// The runner distinguishes: caught, survived, does not compile, fails without the mutation, takes
// too long.
func TestTry(t *testing.T) {
	tree := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(tree, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/x\n\ngo 1.26\n")
	const code = "package x\n\nconst Limit = 10\n"
	write("x.go", code)
	r := runner{tree: tree, limit: time.Minute, baseline: map[string]error{}}
	for _, tt := range []struct {
		name, new, test string
		want, err       string
	}{
		{name: "caught", new: "Limit = 11", test: "grep -q 'Limit = 10' x.go", want: "caught"},
		{name: "survived", new: "Limit = 11", test: "grep -q Limit x.go", want: "SURVIVED"},
		{name: "broken code", new: "Limit = nonsense", test: "grep -q 'Limit = 10' x.go", err: "does not compile"},
		{name: "broken test", new: "Limit = 11", test: "false", err: "without the mutation"},
	} {
		m := mutation{list: "x.txt", name: tt.name, file: "x.go", old: "Limit = 10", new: tt.new, test: tt.test}
		got, err := r.try(&m)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
		if text, _ := os.ReadFile(filepath.Join(tree, "x.go")); string(text) != code {
			t.Errorf("%s: the file was not restored: %q", tt.name, text)
		}
	}
	r.limit = 50 * time.Millisecond
	if _, err := r.shell("sleep 60"); err == nil || !strings.Contains(err.Error(), "no result within") {
		t.Errorf("a command that takes too long: %v", err)
	}
}
