package inventory_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/server/inventory"
	"github.com/tenurehq/tenure/server/service"
	"github.com/tenurehq/tenure/store/mem"
)

var update = flag.Bool("update", false, "write the lists into docs/inventory")

// source calls visit for every node of every Go file that is not a test.
func source(t *testing.T, visit func(f *ast.File, n ast.Node)) {
	t.Helper()
	top, err := inventory.Top()
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			visit(f, n)
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// literal returns the value of a string literal, or "".
func literal(n ast.Node) string {
	if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
		s, _ := strconv.Unquote(l.Value)
		return s
	}
	return ""
}

func called(n ast.Node) (name string, args []ast.Expr) {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return "", nil
	}
	if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
		return sel.Sel.Name, call.Args
	}
	return "", nil
}

// Every route is on the list: those of the service from its table, those of other servers
// from their calls of Handle.
func TestRoutes(t *testing.T) {
	s, err := service.New(t.Context(), service.Config{Store: mem.New(mem.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	var lines []string
	for _, r := range s.Routes() {
		lines = append(lines, "service "+r.Method+" "+r.Path)
	}
	source(t, func(f *ast.File, n ast.Node) {
		name, args := called(n)
		if name != "Handle" && name != "HandleFunc" || len(args) < 2 {
			return
		}
		method, path := literal(args[0]), literal(args[1])
		if method == "/" {
			return // answers what has no route
		}
		if strings.Contains(method, "/") {
			path = "" // http.ServeMux: the method is in the pattern
		} else if path == "" {
			return
		}
		lines = append(lines, strings.TrimSpace(f.Name.Name+" "+method+" "+path))
	})
	if err := inventory.Check("routes", lines, *update); err != nil {
		t.Error(err)
	}
}

var metricName = regexp.MustCompile(`^(tenure_[a-z_]+|leaders_acting)$`)

// Every metric is on the list, with the package that has it.
func TestMetrics(t *testing.T) {
	var lines []string
	source(t, func(f *ast.File, n ast.Node) {
		if name := literal(n); metricName.MatchString(name) && slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
			return strings.Contains(i.Path.Value, "/prometheus")
		}) {
			lines = append(lines, f.Name.Name+" "+name)
		}
	})
	if err := inventory.Check("metrics", lines, *update); err != nil {
		t.Error(err)
	}
}

var variable = regexp.MustCompile(`^((TENURE|FLEET|CHAOS|LAB|OTEL)_[A-Z_]*[A-Z]|NO_COLOR)$`)

// Every environment variable that does not belong to a flag is on the list. (Those of flags
// are listed with the commands.)
func TestEnvironment(t *testing.T) {
	var lines []string
	source(t, func(_ *ast.File, n ast.Node) {
		if v := literal(n); variable.MatchString(v) {
			lines = append(lines, v)
		}
		if name, args := called(n); (name == "Getenv" || name == "LookupEnv") && len(args) == 1 && literal(args[0]) != "" {
			lines = append(lines, literal(args[0]))
		}
	})
	if err := inventory.Check("environment", lines, *update); err != nil {
		t.Error(err)
	}
}

// Every flag of the tools without commands, which use package flag itself, is on the list.
func TestTools(t *testing.T) {
	var lines []string
	source(t, func(f *ast.File, n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok || f.Name.Name != "main" || len(call.Args) < 3 || literal(call.Args[0]) == "" {
			return
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "flag" {
				lines = append(lines, "-"+literal(call.Args[0])+": "+literal(call.Args[2]))
			}
		}
	})
	if err := inventory.Check("tools", lines, *update); err != nil {
		t.Error(err)
	}
}

// Both a lost line and a new one are reported.
func TestDiff(t *testing.T) {
	missing, added := inventory.Diff([]string{"a", "b"}, []string{"b", "c"})
	if !slices.Equal(missing, []string{"a"}) || !slices.Equal(added, []string{"c"}) {
		t.Errorf("lost %q, added %q", missing, added)
	}
}
