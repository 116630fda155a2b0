package filefence_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/filefence"
)

// A nightly job was paused while it led. Another leader took over and wrote the report. When
// the first job resumes, its write is refused.
func Example() {
	path, _ := os.MkdirTemp("", "reports-")
	defer func() { _ = os.RemoveAll(path) }()

	dir, err := filefence.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = dir.Close() }()
	write := func(token fence.Token, report string) error {
		stamp := fence.Stamp{Deployment: "prod", Group: "reports", Token: token} // term.Stamp()
		return dir.WriteFile(context.Background(), stamp, "today.csv", []byte(report), 0o644)
	}
	fmt.Println(write(42, "the new leader's"))
	fmt.Println(write(41, "the old leader's") != nil)
	report, err := os.ReadFile(filepath.Join(path, "today.csv"))
	fmt.Println(string(report), err)
	// Output:
	// <nil>
	// true
	// the new leader's <nil>
}
