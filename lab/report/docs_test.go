package report

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/catalogue"
)

func top(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir, err = child.Repository(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// docs/findings.md is made from the records and the comments beside them.
func TestFindingsAreCurrent(t *testing.T) {
	docs := filepath.Join(top(t), "docs")
	want, missing, err := Findings(docs)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range missing {
		t.Errorf("the comments name a number that is not there: %s", m)
	}
	got, err := os.ReadFile(filepath.Join(docs, "findings.md"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/findings.md is not what docs/lab gives: run make lab-report")
	}
}

// Every picture and page that a document links to within docs is there.
func TestLinks(t *testing.T) {
	docs := filepath.Join(top(t), "docs")
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, page := range []string{"findings.md", "faults.md"} {
		text, err := os.ReadFile(filepath.Join(docs, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(docs, m[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
}

// Every experiment, test and kind of fault in docs/faults.md exists, and every row names one
// or says why there is none.
func TestFaultsExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top(t), "docs", "faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	problems, rows := faultsWrong(t, top(t), string(text))
	for _, p := range problems {
		t.Error(p)
	}
	if rows < 30 {
		t.Errorf("only %d rows were seen", rows)
	}
}

// The test above reports names that do not exist.
func TestFaultsCheckFails(t *testing.T) {
	for _, row := range []string{
		"| a | b | [experiment 99](findings.md#experiment-99) |",
		"| a | b | [experiment 4](findings.md#experiment-5) |",
		"| a | b | `lease.TestNoSuchThing` |",
		"| a | b | `no/such/folder.TestPause` |",
		"| a | b | sim \"no such fault\" |",
		"| a | b | storetest \"no such promise\" |",
		"| a | b | somebody should |",
	} {
		if problems, _ := faultsWrong(t, top(t), "|---|---|---|\n"+row+"\n"); len(problems) != 1 {
			t.Errorf("%s: %q", row, problems)
		}
	}
}

func faultsWrong(t *testing.T, top, text string) (problems []string, rows int) {
	t.Helper()
	named := regexp.MustCompile("`([a-z0-9/]+)\\.(Test\\w+)`")
	quoted := regexp.MustCompile(`(sim|storetest|electortest) "([^"]+)"`)
	linked := regexp.MustCompile(`\[experiment (\w+)\]\(findings\.md#experiment-(\w+)\)`)
	folders := map[string]string{"sim": "sim", "storetest": "store/storetest", "electortest": "electortest"}
	wrong := func(what string) { problems = append(problems, what) }
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| fault |") || strings.HasPrefix(line, "| threat |") {
			continue
		}
		rows++
		some := false
		for _, m := range named.FindAllStringSubmatch(line, -1) {
			some = true
			if !contains(t, filepath.Join(top, m[1]), "_test.go", "func "+m[2]+"(") {
				wrong("there is no " + m[2] + " in " + m[1])
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			some = true
			if !contains(t, filepath.Join(top, folders[m[1]]), ".go", `"`+m[2]+`"`) {
				wrong("there is no " + m[0])
			}
		}
		for _, m := range linked.FindAllStringSubmatch(line, -1) {
			some = true
			if _, err := catalogue.Find(m[1]); err != nil || m[1] != m[2] {
				wrong("there is no experiment " + m[1] + ", or the link is to another")
			}
		}
		if !some && !strings.Contains(line, "not injected") {
			wrong("it names nothing and does not say why: " + line)
		}
	}
	return problems, rows
}

// contains reports whether a file of the folder has the words.
func contains(t *testing.T, dir, suffix, words string) bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		if e.IsDir() || !strings.HasSuffix(e.Name(), suffix) {
			return false
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		return err == nil && strings.Contains(string(text), words)
	})
}
