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

// between returns what stands in the document between two marks.
func between(t *testing.T, text, mark string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, "<!-- "+mark+" -->\n")
	inside, _, ends := strings.Cut(rest, "<!-- end of "+mark+" -->")
	if !ok || !ends {
		t.Fatalf("the marks of %s are missing", mark)
	}
	return inside
}

// on says in one word which groups a route asks for.
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

// routeTable is the table as the document shows it.
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

// The table of routes and roles in docs/api.md is that which is served. TestRoutesAndRoles
// asks each of them in each role.
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

// codesIn finds the codes that the source of a package gives to problems: a Code of a
// composite literal, the first argument of the helpers, and the constants of the wire.
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
				if f, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 && slices.Contains([]string{"bad", "tooMany"}, f.Name) {
					add(n.Args[0])
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

// docs/api.md explains every code that a refusal can have, and no other.
func TestCodeTable(t *testing.T) {
	listed := explained(t)
	given := []string{"quota_" + string(auth.GroupsHeld), "quota_" + string(auth.CandidateIn), rules.NotAMember, rules.CoolingDown, rules.Cordoned}
	for _, dir := range []string{".", "../auth", "../storeapi", "../httpapi", "../../store/remote/wire"} {
		given = append(given, codesIn(t, dir)...)
	}
	// The ledger, nodes and workers alone give these.
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
