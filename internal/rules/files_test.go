package rules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// files returns the paths that git tracks or would track, relative to the top.
func files(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(top(t), ".git")); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no .git: cannot tell which files are the project's")
		}
		t.Skip("no .git: cannot tell which files are the project's")
	}
	// The checkout may belong to another user.
	out := command(t, ".", nil, "git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	var names []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		if _, err := os.Stat(filepath.Join(top(t), name)); name == "" || err != nil {
			continue // deleted in the working tree only
		}
		names = append(names, name)
	}
	if !slices.Contains(names, "go.mod") {
		t.Fatalf("git lists %d files and no go.mod: this test sees nothing", len(names))
	}
	return names
}

func parse(t *testing.T, name string, mode parser.Mode) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(top(t), name), nil, mode)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// No package has side effects when it is imported.
func TestNoInit(t *testing.T) {
	for _, name := range files(t) {
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		if hasInit(parse(t, name, parser.SkipObjectResolution)) {
			t.Errorf("%s: func init: what happens on import happens to everybody; let main call it", name)
		}
	}
}

func hasInit(f *ast.File) bool {
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		return ok && fn.Recv == nil && fn.Name.Name == "init"
	})
}

// Every package has a comment.
func TestPackageComments(t *testing.T) {
	said := map[string]string{} // folder and name → comment
	for _, name := range files(t) {
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "testdata/") {
			continue
		}
		f := parse(t, name, parser.PackageClauseOnly|parser.ParseComments)
		key := path.Dir(name) + " " + f.Name.Name
		said[key] += f.Doc.Text()
	}
	for key, comment := range said {
		dir, name, _ := strings.Cut(key, " ")
		switch {
		case comment == "":
			t.Errorf("%s: package %s has no comment", dir, name)
		case name != "main" && !strings.HasPrefix(comment, "Package "+name+" "):
			t.Errorf("%s: the comment of package %s begins %.20q, not %q", dir, name, comment, "Package "+name)
		}
	}
}

// What no file may contain. The patterns are concatenated, so that this file does not match
// them.
var forbidden = []struct {
	pattern *regexp.Regexp
	only    string // extension; "": every text file
	why     string
}{
	{regexp.MustCompile(`(^|[^\w.$~)}\]-])/(` + `work|root|home|Users` + `)/`), "",
		"a path of one machine: nobody else has it"},
	{regexp.MustCompile(`["` + "`" + `]/(` + `tmp` + `)/`), ".go",
		"a path of one machine: use t.TempDir or os.MkdirTemp"},
	{regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`), "",
		"finish it, or open an issue: a reader cannot act on it"},
	{regexp.MustCompile(`(?m)^(<<<<<<<|>>>>>>>) `), "",
		"a merge left half done"},
	{regexp.MustCompile(`@` + `@[A-Z0-9_]+@@`), "",
		"a number that was to be filled in"},
}

func breaches(name string, text []byte) []string {
	var found []string
	for _, f := range forbidden {
		if f.only != "" && f.only != path.Ext(name) {
			continue
		}
		for _, at := range f.pattern.FindAllIndex(text, -1) {
			line := 1 + bytes.Count(text[:at[1]-1], []byte("\n"))
			found = append(found, name+":"+strconv.Itoa(line)+": "+strings.TrimSpace(string(text[at[0]:at[1]]))+": "+f.why)
		}
	}
	return found
}

// No file contains a path of a developer's machine or a mark of unfinished work.
func TestForbidden(t *testing.T) {
	for _, name := range files(t) {
		if path.Base(name) == "go.sum" {
			continue // hashes may match by chance
		}
		text, err := os.ReadFile(filepath.Join(top(t), name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(text, 0) >= 0 {
			continue // a picture
		}
		for _, b := range breaches(name, text) {
			t.Error(b)
		}
	}
}

// The patterns match what they should, and nothing similar.
func TestForbiddenPatterns(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       bool
	}{
		{"a.md", "see /wo" + "rk/main", true},
		{"a.md", "/ro" + "ot/x at the start", true},
		{"a.go", `os.Open("/ho` + `me/me/x")`, true},
		{"a.md", "docs/work/notes", false},
		{"a.md", "https://example.com/root/x", false},
		{"a.go", `dir := "/t` + `mp/x"`, true},
		{"a.md", "such as /tmp/x", false},
		{"a.go", "// TO" + "DO: later", true},
		{"a.go", "context.TO" + "DO()", true},
		{"a.go", "var TO" + "DOS int", false},
		{"Makefile", "# FIX" + "ME", true},
		{"a.md", "took @" + "@SECONDS@@", true},
	} {
		if got := breaches(tt.name, []byte(tt.text)); (len(got) > 0) != tt.want {
			t.Errorf("%s %q: %v, want a breach: %v", tt.name, tt.text, got, tt.want)
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc init() {}", 0)
	if err != nil || !hasInit(f) {
		t.Errorf("func init is not seen (%v)", err)
	}
}
