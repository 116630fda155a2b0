package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tenurehq/tenure"

type layer struct {
	path     string
	may      []string
	testsToo []string
	why      string
}

// The layers: which packages of ours a package may import. Imports point upwards in this
// table. A path that ends in "/..." covers everything below it, and those packages may import
// each other (see home); "." is the root package. The first row that covers a package
// decides. Tests may also import testsToo.
var layers = []layer{
	{path: "clock",
		why: "time is an input of everything, so it depends on nothing"},
	{path: "fence",
		why: "a resource checks stamps without knowing how leaders are elected"},
	{path: "internal/suite",
		why: "what the test kits share must not depend on what they test"},
	{path: "fence/fencetest", may: []string{"fence", "internal/suite"},
		why: "the contract of sinks knows no sink"},
	{path: "fence/...", may: []string{"fence"}, testsToo: []string{"internal/servertest", "internal/enginetest"},
		why: "a sink needs the rule and its resource, no election"},
	{path: "internal/plant",
		why: "planted bugs are names; the code with the bug asks whether one is planted"},
	{path: "internal/policy",
		why: "rules are read from text and compared with claims, for any store"},
	{path: "internal/rules",
		why: "a rule must not depend on the code that it checks"},
	{path: "internal/mutations",
		why: "it edits a copy of the code and runs commands; it needs no other package"},
	{path: "internal/child",
		why: "it starts programs for tests, and knows none of them"},
	{path: "internal/enginetest", may: []string{"internal/child"},
		why: "it starts programs, so that no test must link a server"},
	{path: "internal/servertest", may: []string{"internal/child"},
		why: "it starts programs, so that no test must link a server"},
	{path: "internal/termhook", may: []string{"fence"},
		why: "the one way in which elector makes terms of the root package"},
	{path: ".", may: []string{"fence", "clock", "internal/termhook"}, testsToo: []string{"elector", "lease", "store", "store/mem", "tenuretest", "electortest"},
		why: "what a user imports knows no engine"},
	{path: "elector", may: []string{".", "fence", "clock", "internal/termhook"},
		why: "what authors of electors need, for any engine"},
	{path: "store", may: []string{".", "fence", "clock", "internal/policy"},
		why: "the contract of stores knows no store"},
	{path: "internal/guard", may: []string{".", "store", "internal/plant", "internal/policy"},
		why: "rules are enforced around any store"},
	{path: "internal/machine", may: []string{".", "fence", "clock", "store", "internal/plant"},
		why: "the machine decides from the Store contract alone, for any engine"},
	{path: "internal/placement", may: []string{"clock", "store", "internal/plant"},
		why: "it decides from sessions and rules alone, for a process and for the simulator"},
	{path: "internal/shardhook", may: []string{".", "clock", "store"},
		why: "the one way in which shard and lock use a node beyond its methods"},
	{path: "lease", may: []string{".", "elector", "fence", "clock", "store", "internal/plant", "internal/machine", "internal/guard", "internal/shardhook"}, testsToo: []string{"store/mem", "tenuretest", "electortest", "store/storetest"},
		why: "a node drives the machine on any store"},
	{path: "shard", may: []string{".", "fence", "clock", "lease", "store", "internal/placement", "internal/plant", "internal/policy", "internal/shardhook"}, testsToo: []string{"store/mem"},
		why: "a shard is a group, on any store"},
	{path: "lock", may: []string{".", "lease", "store", "internal/shardhook"}, testsToo: []string{"fence", "clock", "store/mem"},
		why: "a lock is a short leadership, on any store"},
	{path: "pulse", may: []string{"store", "internal/plant"}, testsToo: []string{".", "store/mem"},
		why: "a keeper ends sessions of any store"},
	{path: "store/storetest", may: []string{".", "fence", "clock", "lease", "store", "internal/plant", "internal/guard", "internal/suite"}, testsToo: []string{"store/mem"},
		why: "the contract must not depend on one engine"},
	{path: "store/kv/...", may: []string{".", "fence", "clock", "store", "internal/plant", "internal/policy"}, testsToo: []string{"lease", "store/mem"},
		why: "the store knows its engine through the Driver interface alone; internal/policy says which attributes are rules, so that writes of them are counted"},
	{path: "store/mem/...", may: []string{".", "fence", "clock", "store", "store/kv", "internal/plant"}, testsToo: []string{"lease", "internal/guard", "internal/policy", "store/storetest", "store/kv/kvtest"},
		why: "a driver depends on the store above it, never on another engine"},
	{path: "store/etcd/...", may: []string{".", "fence", "clock", "store", "store/kv"}, testsToo: []string{"lease", "lock", "pulse", "shard", "store/storetest", "store/kv/kvtest", "electortest", "tenuretest", "internal/enginetest"},
		why: "a driver depends on the store above it, never on another engine"},
	{path: "store/redis/...", may: []string{".", "fence", "clock", "store", "store/kv"}, testsToo: []string{"fence/filefence", "lease", "store/storetest", "store/kv/kvtest", "electortest", "tenuretest", "internal/enginetest", "internal/servertest"},
		why: "a driver depends on the store above it, never on another engine"},
	{path: "store/kubernetes/...", may: []string{".", "fence", "clock", "store", "store/kv"}, testsToo: []string{"lease", "store/storetest", "store/kv/kvtest", "electortest", "tenuretest", "internal/enginetest", "internal/servertest"},
		why: "a driver depends on the store above it, never on another engine"},
	{path: "store/consul/...", may: []string{".", "store", "store/kv"}, testsToo: []string{"clock", "lease", "store/storetest", "store/kv/kvtest", "electortest", "tenuretest", "internal/enginetest", "internal/servertest"},
		why: "a driver depends on the store above it, never on another engine"},
	{path: "store/postgres/...", may: []string{".", "fence", "clock", "store", "store/kv"}, testsToo: []string{"lease", "store/storetest", "store/kv/kvtest", "electortest", "tenuretest", "internal/enginetest", "internal/servertest", "fence/pgxfence"},
		why: "a driver depends on the store above it, never on another engine; its example writes through a fence"},
	{path: "store/zookeeper/...", may: []string{".", "store", "store/kv"}, testsToo: []string{"clock", "lease", "store/storetest", "store/kv/kvtest", "electortest", "tenuretest", "internal/enginetest", "internal/servertest"},
		why: "a driver depends on the store above it, never on another engine"},
	{path: "electortest", may: []string{".", "fence", "clock", "internal/suite"}, testsToo: []string{"elector", "lease", "store", "store/mem", "tenuretest"},
		why: "the contract of electors holds for raft too, which has no Store"},
	{path: "internal/election", may: []string{".", "fence", "clock", "store", "internal/machine", "internal/plant"}, testsToo: []string{"lease", "store/mem"},
		why: "the service's decisions are made from the Store contract alone, so that the simulator can run them"},
	{path: "store/...", may: []string{".", "fence", "clock", "store", "internal/plant"}, testsToo: []string{"lease", "store/storetest", "electortest", "tenuretest", "internal/enginetest"},
		why: "engines do not depend on each other, since a user chooses one"},
	{path: "raft/...", may: []string{".", "elector", "fence", "clock", "store"}, testsToo: []string{"electortest", "pulse"},
		why: "raft elects without leases; store has the types of a keeper"},
	{path: "tenuretest", may: []string{".", "fence", "clock", "lease", "store", "store/mem"}, testsToo: []string{"electortest"},
		why: "users' tests run the real code on the engine in memory"},
	{path: "integration/...", may: []string{".", "fence"}, testsToo: []string{"lease", "store", "store/mem", "tenuretest"},
		why: "an adapter works with any elector"},
	{path: "sim/...", may: []string{".", "fence", "clock", "lease", "store", "internal/machine", "internal/placement", "internal/guard", "internal/policy", "store/kv", "store/mem", "internal/plant", "internal/election"},
		why: "the simulated world drives the real machine and the real store"},
	{path: "examples/controller", may: []string{".", "lease", "store", "store/kubernetes"}, testsToo: []string{"internal/enginetest", "internal/servertest"},
		why: "an example of one engine, in a module of its own"},
	{path: "examples/...", may: []string{".", "fence", "clock", "lease", "shard", "store", "store/mem", "tenuretest"},
		why: "an example shows what a user could write, so nothing internal"},
	{path: "tools/...",
		why: "tools work on files and run commands; they need no package of ours"},
	{path: "deploy", testsToo: []string{"internal/servertest"},
		why: "files for operators; only their tests are Go"},
	{path: "docs", testsToo: []string{"internal/child"},
		why: "pages; only their tests are Go"},
	{path: "server/...", may: []string{".", "fence/...", "clock", "lease", "pulse", "shard", "store", "store/...", "raft", "internal/plant", "internal/policy", "internal/guard", "internal/machine", "internal/election"}, testsToo: []string{"electortest", "store/storetest", "tenuretest", "internal/child", "internal/enginetest", "internal/servertest"},
		why: "the product knows neither the reference fleet nor the lab"},
	{path: "reference/...", may: []string{".", "elector", "fence/...", "clock", "lease", "pulse", "store", "store/...", "raft", "internal/guard", "server/..."}, testsToo: []string{"electortest", "tenuretest", "internal/child", "internal/enginetest", "internal/servertest"},
		why: "the reference fleet is what a user could write, and knows nothing of the lab"},
	{path: "lab/strategies", may: []string{".", "clock", "fence", "lease", "raft", "store", "server/...", "reference/...", "lab/measure", "lab/plot", "internal/child", "internal/enginetest", "internal/servertest"},
		why: "it runs election strategies, ours and those of others, on real servers behind proxies"},
	{path: "lab/prevote", may: []string{"internal/child", "internal/enginetest", "internal/servertest"},
		why: "it measures hashicorp/raft behind proxies, and nothing of ours"},
	{path: "lab/sites", may: []string{".", "clock", "fence", "fence/pgxfence", "lease", "store", "server/...", "lab/plot", "internal/enginetest", "internal/servertest"},
		why: "it replays an outage with real databases and an engine behind proxies"},
	{path: "lab/...", may: []string{".", "fence/...", "clock", "lease", "store", "store/...", "raft", "internal/child", "internal/plant", "internal/servertest", "server/...", "reference/..."}, testsToo: []string{"pulse", "internal/enginetest"},
		why: "the lab may use everything, and nobody imports the lab"},
}

// Which other modules may be imported, except in tests: only the named packages may import a path
// that begins with one of these.
var reserved = []struct {
	imports []string
	by      []string
	why     string
}{
	{
		imports: []string{"testing", "net/http/httptest", module + "/tenuretest", module + "/electortest", module + "/store/storetest", module + "/store/kv/kvtest", module + "/fence/fencetest", module + "/internal/servertest"},
		by:      []string{"sim/...", "tenuretest", "electortest", "store/storetest", "store/kv/kvtest", "fence/fencetest", "internal/enginetest", "internal/servertest", "lab", "lab/prevote", "lab/sites", "lab/strategies", "examples/..."},
		why:     "testing registers flags and its helpers end the process: not in a user's program",
	},
	{
		imports: []string{module + "/store/mem"},
		by:      []string{"sim/...", "tenuretest", "examples/...", "reference/node"},
		why:     "memory is no engine to run on: it dies with its process",
	},
}

type pkg struct {
	ImportPath   string
	ForTest      string
	Standard     bool
	Module       *struct{ Path string }
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func (p pkg) rel() string {
	if p.ImportPath == module {
		return "."
	}
	return strings.TrimPrefix(p.ImportPath, module+"/")
}

func (p pkg) ours() bool {
	return p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/")
}

// top is the folder of the root module.
func top(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func command(t *testing.T, dir string, env []string, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = filepath.Join(top(t), dir)
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &stderr)
	}
	return out
}

// builds are the ways in which the files of a package are chosen.
var builds = []struct{ os, tags string }{
	{"linux", ""}, {"linux", "planted"}, {"darwin", ""}, {"windows", ""},
}

// list asks the go tool about every package that a build or its tests need.
func list(t *testing.T, dir, goos, tags string) []pkg {
	t.Helper()
	out := command(t, dir, []string{"GOOS=" + goos}, "go", "list", "-deps", "-test", "-tags", tags,
		"-json=ImportPath,ForTest,Standard,Module,Imports,TestImports,XTestImports", "./...")
	var pkgs []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
}

// covers reports whether the row's path is the package or, with "/...", above it.
func covers(row, rel string) bool {
	if begin, ok := strings.CutSuffix(row, "/..."); ok {
		return rel == begin || strings.HasPrefix(rel, begin+"/")
	}
	return row == rel
}

func anyCovers(rows []string, rel string) bool {
	return slices.ContainsFunc(rows, func(row string) bool { return covers(row, rel) })
}

// The core imports only the standard library, also in tests. So a user gets one module, and no
// other version in their go.mod changes.
func TestNoDependencies(t *testing.T) {
	var mod struct{ Require, Replace, Tool []any }
	if err := json.Unmarshal(command(t, ".", nil, "go", "mod", "edit", "-json"), &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Require)+len(mod.Replace)+len(mod.Tool) > 0 {
		t.Errorf("go.mod of the root module must name nothing but itself, and has %d require, %d replace, %d tool", len(mod.Require), len(mod.Replace), len(mod.Tool))
	}
	for _, b := range builds {
		for _, p := range list(t, ".", b.os, b.tags) {
			if !p.Standard && (p.Module == nil || p.Module.Path != module) {
				t.Errorf("%s %s: %s is neither ours nor in the standard library", b.os, b.tags, p.ImportPath)
			}
		}
	}
}

// Imports point upwards in the table of layers, never sideways.
func TestImports(t *testing.T) {
	var own packages
	for _, b := range builds {
		for _, p := range list(t, ".", b.os, b.tags) {
			own = own.add(p)
		}
	}
	// The other modules are checked for this system only.
	for _, dir := range otherModules(t) {
		for _, p := range list(t, dir, "linux", "") {
			own = own.add(p)
		}
	}
	if len(own) < 5*len(builds) {
		t.Fatalf("go list found only %d packages of ours: this test sees nothing", len(own))
	}
	for _, complaint := range judge(own) {
		t.Error(complaint)
	}
}

type packages []pkg

// add adds a package of this repository. Test variants repeat the imports of the package.
func (own packages) add(p pkg) packages {
	if p.ours() && p.ForTest == "" && !strings.HasSuffix(p.ImportPath, ".test") {
		return append(own, p)
	}
	return own
}

// otherModules returns the folders of the modules besides the root, without the one that has
// only tools, and the one that nobody imports and that takes minutes to fetch.
func otherModules(t *testing.T) []string {
	t.Helper()
	var dirs []string
	err := fs.WalkDir(os.DirFS(top(t)), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."), d.IsDir() && d.Name() == "testdata":
			return fs.SkipDir
		case d.Name() == "go.mod" && name != "go.mod" && path.Dir(name) != "tools" && path.Dir(name) != "compare":
			dirs = append(dirs, path.Dir(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// judge applies both tables and returns one line per violation.
func judge(pkgs []pkg) []string {
	var breaches []string
	say := func(line string) {
		if !slices.Contains(breaches, line) {
			breaches = append(breaches, line)
		}
	}
	for _, p := range pkgs {
		rel := p.rel()
		at := slices.IndexFunc(layers, func(row layer) bool { return covers(row.path, rel) })
		if at < 0 {
			say(rel + " has no row in the layers: say what it may import, and why")
			continue
		}
		row := layers[at]
		for _, kind := range []struct {
			name    string
			imports []string
			may     []string
		}{
			{"", p.Imports, row.may},
			{"tests of ", slices.Concat(p.TestImports, p.XTestImports), slices.Concat(row.may, row.testsToo)},
		} {
			for _, imp := range kind.imports {
				target := pkg{ImportPath: imp}
				if !target.ours() {
					continue
				}
				to := target.rel()
				if !covers(home(row.path, rel), to) && !anyCovers(kind.may, to) {
					say(kind.name + rel + " imports " + to + ": " + row.why)
				}
			}
		}
		for _, r := range reserved {
			if anyCovers(r.by, rel) {
				continue
			}
			for _, imp := range p.Imports {
				if hit(r.imports, imp) && !hit([]string{p.ImportPath}, imp) {
					say(rel + " imports " + strings.TrimPrefix(imp, module+"/") + ": " + r.why)
				}
			}
		}
	}
	return breaches
}

// home is the folder whose packages may import each other: all of sim/..., but in store/...
// only those of one engine.
func home(row, rel string) string {
	switch {
	case row == "store/...":
		engine, _, _ := strings.Cut(strings.TrimPrefix(rel, "store/"), "/")
		return path.Join("store", engine, "...")
	case strings.HasSuffix(row, "/..."):
		return row
	default:
		return rel
	}
}

// hit reports whether imp is one of the paths or below one: testing/synctest counts as
// testing.
func hit(paths []string, imp string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return covers(p+"/...", imp) })
}

// The rules can fail: each row that forbids something finds a violation.
func TestImportRulesFail(t *testing.T) {
	for _, tt := range []struct {
		from, imports string
		test          bool
		want          string // part of the error; "": allowed
	}{
		{from: "fence", imports: module + "/clock", want: "fence imports clock"},
		{from: "fence", imports: module + "/clock", test: true, want: "tests of fence imports clock"},
		{from: "fence", imports: module + "/fence/sqlfence", want: "fence imports fence/sqlfence"},
		{from: "fence/sqlfence", imports: module + "/fence"},
		{from: "fence/sqlfence", imports: module, want: "fence/sqlfence imports ."},
		{from: "fence/sqlfence", imports: module + "/fence/fencetest", want: "fence/sqlfence imports fence/fencetest"},
		{from: "fence/sqlfence", imports: module + "/fence/fencetest", test: true},
		{from: "fence/fencetest", imports: "testing"},
		{from: "clock", imports: module, want: "clock imports ."},
		{from: ".", imports: module + "/lease", want: ". imports lease"},
		{from: ".", imports: module + "/lease", test: true},
		{from: ".", imports: module + "/fence"},
		{from: "lease", imports: module + "/store/mem", want: "lease imports store/mem"},
		{from: "lease", imports: module + "/store/mem", test: true},
		{from: "lease", imports: module + "/internal/plant"},
		{from: "lease", imports: module + "/sim", want: "lease imports sim"},
		{from: "store/mem", imports: module + "/lease", want: "store/mem imports lease"},
		{from: "store/mem", imports: module + "/store"},
		{from: "lease", imports: module + "/internal/machine"},
		{from: "internal/machine", imports: module + "/lease", want: "internal/machine imports lease"},
		{from: "store/mem", imports: module + "/store/mem/wire"},
		{from: "store/mem", imports: module + "/store/etcd", want: "store/mem imports store/etcd"},
		{from: "store/mem", imports: module + "/store/kv"},
		{from: "store/kv", imports: module + "/store/mem", want: "store/kv imports store/mem"},
		{from: "store/kv", imports: module + "/store/mem", test: true},
		{from: "store/kv/kvtest", imports: "testing"},
		{from: "store/remote", imports: module + "/store/remote/wire"},
		{from: "store/remote", imports: module + "/server/storeapi", test: true, want: "tests of store/remote imports server/storeapi"},
		{from: "server/storeapi", imports: module + "/store/remote/wire"},
		{from: "server/storeapi", imports: module + "/store/storetest", test: true},
		{from: "server/storeapi", imports: module + "/store/mem", want: "server/storeapi imports store/mem"},
		{from: "store/etcd", imports: module + "/store/mem", test: true, want: "tests of store/etcd imports store/mem"},
		{from: "lease", imports: "testing", want: "lease imports testing"},
		{from: "lease", imports: "testing/synctest", want: "lease imports testing/synctest"},
		{from: "lease", imports: "testing", test: true},
		{from: "store/storetest", imports: "testing"},
		{from: "sim", imports: module + "/store/mem"},
		{from: "sim/cmd/sim", imports: module + "/sim"},
		{from: "electortest", imports: module + "/lease", want: "electortest imports lease"},
		{from: "examples/story", imports: module + "/internal/plant", want: "examples/story imports internal/plant"},
		{from: "examples/story", imports: module + "/store/mem"},
		{from: "raft", imports: module + "/lease", want: "raft imports lease"},
		{from: "lease", imports: module + "/server/embeddedetcd", want: "lease imports server/embeddedetcd"},
		{from: "server/embeddedetcd", imports: module + "/store/etcd"},
		{from: "server/embeddedetcd", imports: module + "/store/mem", want: "server/embeddedetcd imports store/mem"},
		{from: "reference/node", imports: module + "/store/mem"},
		{from: "reference/client", imports: module + "/store/mem", want: "reference/client imports store/mem"},
		{from: "reference/node", imports: module + "/internal/plant", want: "reference/node imports internal/plant"},
		{from: "lab/labnode", imports: module + "/internal/plant"},
		{from: "server/service", imports: module + "/lab/labapi", want: "server/service imports lab/labapi"},
		{from: "server/service", imports: module + "/reference/ledger", want: "server/service imports reference/ledger"},
		{from: "server/service", imports: module + "/reference/ledger", test: true, want: "tests of server/service imports reference/ledger"},
		{from: "reference/node", imports: module + "/server/httpapi"},
		{from: "reference/node", imports: module + "/lab", want: "reference/node imports lab"},
		{from: "lab/experiment", imports: module + "/reference/api"},
		{from: "manager", imports: "fmt", want: "manager has no row"},
	} {
		p := pkg{ImportPath: module + "/" + tt.from}
		if tt.from == "." {
			p.ImportPath = module
		}
		if tt.test {
			p.XTestImports = []string{tt.imports}
		} else {
			p.Imports = []string{tt.imports}
		}
		got := strings.Join(judge([]pkg{p}), "; ")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s importing %s (test: %v): %q, want %q", tt.from, tt.imports, tt.test, got, tt.want)
		}
	}
}
