package rules

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// labRoute begins every route that only the lab may serve.
const labRoute = `"/lab/`

// No program of server/ or reference/ serves a route of the lab.
func TestNoLabRoutes(t *testing.T) {
	files := 0
	for _, dir := range []string{"server", "reference"} {
		err := filepath.WalkDir(filepath.Join(top(t), dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			source, err := os.ReadFile(path)
			if bytes.Contains(source, []byte(labRoute)) {
				t.Errorf("%s serves a route under /lab/: only lab/labnode may", path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 100 {
		t.Errorf("only %d files were read", files)
	}
	// The text that is searched for is how the lab writes its routes.
	source, err := os.ReadFile(filepath.Join(top(t), "lab", "labnode", "hooks.go"))
	if err != nil || !bytes.Contains(source, []byte(labRoute)) {
		t.Errorf("lab/labnode/hooks.go has no %s: %v", labRoute, err)
	}
}
