package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pure are the packages that the simulator runs step by step: they decide, start nothing, and
// wait for nothing.
var pure = []string{"internal/election", "internal/machine"}

// waits are the functions of package time with which code waits or reads a clock.
var waits = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

// impure returns one line for each statement that starts something, waits, or reads a clock.
func impure(name string, source []byte) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found []string
	say := func(n ast.Node, what string) {
		found = append(found, fmt.Sprintf("%s: %s", files.Position(n.Pos()), what))
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			say(n, "go statement")
		case *ast.SelectStmt:
			say(n, "select statement")
		case *ast.SelectorExpr:
			if of, ok := n.X.(*ast.Ident); ok && of.Name == "time" && slices.Contains(waits, n.Sel.Name) {
				say(n, "time."+n.Sel.Name)
			}
		}
		return true
	})
	return found, nil
}

// Pure packages start no goroutine, wait for nothing and read no clock.
func TestPure(t *testing.T) {
	for _, dir := range pure {
		files, err := filepath.Glob(filepath.Join(top(t), dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v: this test sees nothing", dir, len(files), err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			found, err := impure(name, source)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range found {
				t.Error(line)
			}
		}
	}
}

// The rule can fail.
func TestPureRuleFails(t *testing.T) {
	for _, body := range []string{"go f()", "select {}", "time.Sleep(1)", "_ = time.Now()", "<-time.After(1)"} {
		found, err := impure("x.go", []byte("package x\nimport \"time\"\nfunc f() { "+body+" }\n"))
		if err != nil || len(found) != 1 {
			t.Errorf("%s: %v, %v", body, found, err)
		}
	}
	if found, err := impure("x.go", []byte("package x\nimport \"time\"\nfunc f(d time.Duration) {}\n")); err != nil || len(found) > 0 {
		t.Errorf("%v, %v", found, err)
	}
}
