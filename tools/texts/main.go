// Command texts prints a random sample of the project's texts, for somebody to read:
// comments and sentences in string literals (errors, log lines, help texts) of all Go files
// that are not tests, and paragraphs of the documents. The same seed and the same files give
// the same sample.
//
//	go run ./tools/texts -seed 1 -n 200
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

type text struct {
	file string
	line int
	kind string
	body string
}

// sentence is the least number of words of a string literal that is taken for a text.
const sentence = 4

func main() {
	seed := flag.Uint64("seed", 1, "seed of the sample")
	n := flag.Int("n", 200, "number of texts to print")
	flag.Parse()
	all, err := collect()
	if err != nil {
		fmt.Fprintln(os.Stderr, "texts:", err)
		os.Exit(1)
	}
	rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, t := range all[:min(max(*n, 0), len(all))] {
		fmt.Printf("%s:%d: %s: %s\n", t.file, t.line, t.kind, t.body)
	}
}

// collect returns all texts of the files that git keeps, in the order of the files.
func collect() (all []text, err error) {
	top, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return nil, fmt.Errorf("find the repository: %w", err)
	}
	root := strings.TrimSpace(string(top))
	list, err := exec.Command("git", "-C", root, "ls-files", "-z", "*.go", "*.md").Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of %s: %w", root, err)
	}
	files := strings.Split(strings.Trim(string(list), "\x00"), "\x00")
	slices.Sort(files)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "testdata/") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		if filepath.Ext(file) == ".md" {
			all = append(all, paragraphs(file, source)...)
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, source, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		add := func(pos token.Pos, kind, body string) {
			if words := strings.Fields(body); len(words) > 0 && (kind == "comment" || len(words) >= sentence) {
				all = append(all, text{file, set.Position(pos).Line, kind, strings.Join(words, " ")})
			}
		}
		for _, c := range parsed.Comments {
			add(c.Pos(), "comment", c.Text())
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			if lit, ok := node.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					add(lit.Pos(), "string", s)
				}
			}
			return true
		})
	}
	return all, nil
}

// paragraphs returns the paragraphs and rows of a document, without its code.
func paragraphs(file string, source []byte) (all []text) {
	code, open := false, false
	for i, line := range bytes.Split(source, []byte("\n")) {
		s := strings.Join(strings.Fields(string(line)), " ")
		fence := strings.HasPrefix(s, "```")
		code = code != fence
		switch {
		case fence || code || s == "" || strings.HasPrefix(s, "|--"):
			open = false
		case open && !strings.HasPrefix(s, "|") && !strings.HasPrefix(s, "- ") && !strings.HasPrefix(s, "#"):
			all[len(all)-1].body += " " + s
		default:
			all = append(all, text{file, i + 1, "document", s})
			open = !strings.HasPrefix(s, "#")
		}
	}
	return all
}
