package service

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	rules "github.com/tenurehq/tenure/internal/policy"
	"github.com/tenurehq/tenure/server/auth"
)

var update = flag.Bool("update", false, "write the table of routes into docs/api.md")

const apiDoc = "../../docs/api.md"

// between returns the text between two marks of the document.
func between(t *testing.T, text, mark string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, "<!-- "+mark+" -->\n")
	inside, _, ends := strings.Cut(rest, "<!-- end of "+mark+" -->")
	if !ok || !ends {
		t.Fatalf("the marks of %s are missing", mark)
	}
	return inside
}

// on names the groups that a route is about in one word.
func on(r Route) string {
	if r.Verb == auth.Open {
		return ""
	}
	if r.Groups == nil {
		return "all"
	}
	req := httptest.NewRequest("GET", "/?group=x", nil)
	req.SetPathValue("group", "x")
	if g := r.Groups(req); len(g) == 1 && g[0] == auth.SomeGroup {
		return "some"
	}
	return "group"
}

// routeTable renders the routes as the document shows them.
func routeTable(routes []Route) string {
	var b strings.Builder
	b.WriteString("| route | without credentials |")
	for _, v := range auth.Verbs() {
		b.WriteString(" " + string(v) + " |")
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(auth.Verbs())) + "\n")
	for _, r := range routes {
		open := "401"
		if r.Verb == auth.Open {
			open = "yes"
		}
		_, _ = fmt.Fprintf(&b, "| `%s %s` | %s |", r.Method, r.Path, open)
		for _, v := range auth.Verbs() {
			cell := "403"
			switch {
			case r.Verb == auth.Open:
				cell = "yes"
			case r.Verb == v || slices.Contains(r.Or, v):
				cell = on(r)
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// The table of routes and roles in docs/api.md matches the routes that are served.
// TestRoutesAndRoles calls each route in each role.
func TestRouteTable(t *testing.T) {
	text, err := os.ReadFile(apiDoc)
	if err != nil {
		t.Fatal(err)
	}
	have, want := between(t, string(text), "routes"), routeTable(serve(t, memStore(t)).svc.Routes())
	if have == want {
		return
	}
	if !*update {
		t.Fatal("docs/api.md does not show the routes that are served: read what has changed, then go test -run TestRouteTable -update")
	}
	const begin = "<!-- routes -->\n"
	if err := os.WriteFile(apiDoc, []byte(strings.Replace(string(text), begin+have, begin+want, 1)), 0o644); err != nil { //nolint:gosec // a document for everybody
		t.Fatal(err)
	}
}

// codesIn finds the problem codes in the source of a package: Code fields of composite
// literals, arguments of helpers, and constants of package wire.
func codesIn(t *testing.T, dir string) (codes []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v", dir, err)
	}
	add := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if code, err := strconv.Unquote(lit.Value); err == nil {
				codes = append(codes, code)
			}
		}
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Code" {
					add(n.Value)
				}
			case *ast.CallExpr:
				name := ""
				switch f := n.Fun.(type) {
				case *ast.Ident:
					name = f.Name
				case *ast.SelectorExpr:
					name = f.Sel.Name
				}
				if at, known := map[string]int{"bad": 0, "tooMany": 0, "Refuse": 1}[name]; known {
					add(n.Args[at])
				}
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if strings.HasPrefix(name.Name, "Code") && i < len(n.Values) {
						add(n.Values[i])
					}
				}
			}
			return true
		})
	}
	return codes
}

// docs/api.md explains every code that a refusal can have, and no other code.
func TestCodeTable(t *testing.T) {
	listed := explained(t)
	given := []string{"quota_" + string(auth.GroupsHeld), "quota_" + string(auth.CandidateIn), rules.NotAMember, rules.CoolingDown, rules.Cordoned}
	for _, dir := range []string{".", "../auth", "../storeapi", "../httpapi", "../../store/remote/wire"} {
		given = append(given, codesIn(t, dir)...)
	}
	// Only the ledger, nodes and workers return these.
	given = slices.DeleteFunc(given, func(code string) bool { return code == "foreign_host" || code == "foreign_origin" })
	slices.Sort(given)
	given = slices.Compact(given)
	slices.Sort(listed)
	for _, code := range given {
		if !slices.Contains(listed, code) {
			t.Errorf("%s is not explained", code)
		}
	}
	for i, code := range listed {
		if !slices.Contains(given, code) || i > 0 && listed[i-1] == code {
			t.Errorf("%s is explained and never given, or explained twice", code)
		}
	}
}
