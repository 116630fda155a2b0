package child

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Build compiles programs of the repository at top into the folder or file out. A
// program is named by its module and its folder in it: server/cmd/tenure. Each is built
// with its own go.mod and without go.work.
func Build(ctx context.Context, top, out string, flags []string, programs ...string) error {
	for _, program := range programs {
		module, name, _ := strings.Cut(program, "/")
		args := append([]string{"build", "-buildvcs=false", "-o", out}, flags...)
		cmd := exec.CommandContext(ctx, "go", append(args, "./"+name)...)
		cmd.Dir, cmd.Env = filepath.Join(top, module), append(os.Environ(), "GOWORK=off")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", program, err, text)
		}
	}
	return nil
}
