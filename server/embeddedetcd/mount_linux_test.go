package embeddedetcd

import (
	"os"
	"syscall"
	"testing"
)

const readOnly = syscall.MS_RDONLY

func mountTmpfs(t *testing.T, dir, size string, flags uintptr) error {
	t.Helper()
	if os.Getuid() != 0 {
		return errNoRoot
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, "size="+size); err != nil {
		return err
	}
	t.Cleanup(func() {
		// Files that a failed engine still has open are released with the process.
		_ = syscall.Unmount(dir, syscall.MNT_DETACH)
	})
	return nil
}
