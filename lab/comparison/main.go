// Compare writes the page that compares Tenure with etcdctl lock, consul lock, client-go's
// leader election and redsync, from the results of the tests in this folder.
//
//	make compare                 # everything, then docs/comparison.md and docs/compare.json
//	make compare RUN=TestResign  # one row, then the page
//
// Each row is a test. A test asserts nothing about the others: it records what happened, and
// fails only if it could not find out, or if Tenure violates a guarantee. The notes and the
// servers that are built for the tests are in .cache/compare.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tenurehq/tenure/internal/child"
)

func main() {
	docs := flag.String("docs", filepath.Join("..", "..", "docs"), "the folder to write compare.json and comparison.md to")
	flag.Parse()
	if err := run(*docs); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(docs string) error {
	notes, err := readNotes()
	if err != nil {
		return err
	}
	r := newReport(notes)
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	var page bytes.Buffer
	if err := r.page(&page); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(docs, "compare.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(docs, "comparison.md"), page.Bytes(), 0o644); err != nil {
		return err
	}
	return r.print(os.Stdout)
}

// notesDir is the folder of the tests' results.
func notesDir() (string, error) {
	cache, err := child.CacheDir("compare")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "notes")
	return dir, os.MkdirAll(dir, 0o755)
}

// readNotes returns the notes by the name of their test.
func readNotes() (map[string]note, error) {
	dir, err := notesDir()
	if err != nil {
		return nil, err
	}
	notes := map[string]note{}
	for _, t := range tables() {
		for _, row := range t.rows {
			text, err := os.ReadFile(filepath.Join(dir, row.test+".json"))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			var n note
			if err == nil {
				err = json.Unmarshal(text, &n)
			}
			if err != nil {
				return nil, fmt.Errorf("the notes of %s: %w; run it again", row.test, err)
			}
			notes[row.test] = n
		}
	}
	if len(notes) == 0 {
		return nil, fmt.Errorf("nothing was run: no notes in %s", dir)
	}
	return notes, nil
}
