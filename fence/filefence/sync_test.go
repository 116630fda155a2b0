package filefence_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/internal/servertest"
)

// writeEnv names a directory: the test binary writes a file to it and ends.
const writeEnv = "TENURE_FILEFENCE_TEST_WRITE"

// written is the last line that such a process prints.
const written = "the file is written"

func writeOnce(path string) error {
	d, err := filefence.Open(path)
	if err != nil {
		return err
	}
	if err := d.WriteFile(context.Background(), at(7), "report", []byte("text"), 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, written)
	return err
}

// The mark is on disk before the file is touched, and the file before WriteFile returns: each
// is synced and renamed, and then its folder is synced. The test observes system calls,
// because the page cache survives a killed process.
func TestSyncOrder(t *testing.T) {
	path, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := servertest.Command(t, "strace", "-f", "-q", "-y", "-s", "256", "-o", trace, "-e", "trace=write,fsync,fdatasync,rename,renameat,renameat2", os.Args[0])
	cmd.Env = append(cmd.Env, writeEnv+"="+path)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), written) {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(path, ".tenure")
	steps := []struct {
		what string
		has  []string
	}{
		{"the new mark is written", []string{"write(", folder + "/new-mark>"}},
		{"the new mark is synced", []string{"sync(", folder + "/new-mark>"}},
		{"the new mark is moved into place", []string{"rename", "new-mark", `mark"`}},
		{"the fence's folder is synced", []string{"sync(", folder + ">"}},
		{"the new file is written", []string{"write(", folder + "/new-report>"}},
		{"the new file is synced", []string{"sync(", folder + "/new-report>"}},
		{"the new file is moved into place", []string{"rename", "new-report", `report"`}},
		{"the directory is synced", []string{"sync(", path + ">"}},
		{"the caller is told", []string{"write(1<", written}},
	}
	lines := strings.Split(string(data), "\n")
	next := 0
	for _, step := range steps {
		found := -1
		for i := next; i < len(lines) && found < 0; i++ {
			found = i
			for _, part := range step.has {
				if !strings.Contains(lines[i], part) {
					found = -1
				}
			}
		}
		if found < 0 {
			t.Fatalf("not in order: %s:\n%s", step.what, data)
		}
		next = found + 1
	}
}
