package servertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/internal/child"
)

// packages are the packages to install for a program.
func packages(program string) []string {
	switch program {
	case "postgres":
		return []string{"postgresql", "libpq5"}
	case "psql":
		return []string{"postgresql-client", "libpq5"}
	case "mariadbd":
		return []string{"mariadb-server"}
	case "promtool":
		return []string{"prometheus"}
	case "node":
		return []string{"nodejs", "npm"}
	case "systemd-analyze":
		return []string{"systemd"}
	default:
		return []string{program}
	}
}

// obtain finds the programs on the machine, or installs them.
func obtain(programs []string) (bin string, env []string, err error) {
	err = fetch(programs[0], packages(programs[0]), func(root string) (ok bool) {
		if bin, ok = installed(root, programs); ok && root != "/" {
			env = libraries(root)
		}
		return ok
	})
	return bin, env, err
}

// fetch calls found with the root of the machine, and then with the folder of unpacked
// packages, until it returns true. If neither has what is needed, it installs the packages.
func fetch(name string, packages []string, found func(root string) bool) error {
	cache, err := child.CacheDir("servertest")
	if err != nil {
		return err
	}
	unpacked := filepath.Join(cache, name)
	if found("/") || found(unpacked) {
		return nil
	}
	// Several test binaries may install at the same time.
	unlock, err := child.LockFile(filepath.Join(cache, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if found("/") || found(unpacked) {
		return nil
	}
	var errs []error
	for _, get := range []func(string, []string) error{install, unpack} {
		if err := get(unpacked, packages); err != nil {
			errs = append(errs, err)
			continue
		}
		if found("/") || found(unpacked) {
			return nil
		}
	}
	return fmt.Errorf("%s: not on this machine, and it cannot be installed: %w", name, errors.Join(errs...))
}

// installed looks for all programs in one folder: on the PATH and in Debian's folders of
// PostgreSQL, or in the same folders of unpacked packages.
func installed(root string, programs []string) (bin string, ok bool) {
	hidden, _ := filepath.Glob(filepath.Join(root, "usr", "lib", "postgresql", "*", "bin"))
	slices.Reverse(hidden) // the newest first
	dirs := slices.Concat(hidden, []string{filepath.Join(root, "usr", "bin"), filepath.Join(root, "usr", "sbin")})
	if root == "/" {
		dirs = append(filepath.SplitList(os.Getenv("PATH")), dirs...)
	}
	for _, dir := range dirs {
		if !slices.ContainsFunc(programs, func(p string) bool {
			_, err := exec.LookPath(filepath.Join(dir, p))
			return err != nil
		}) {
			return dir, filepath.IsAbs(dir)
		}
	}
	return "", false
}

// libraries makes unpacked programs find their unpacked libraries.
func libraries(root string) []string {
	found, _ := filepath.Glob(filepath.Join(root, "usr", "lib", "*-linux-*"))
	if len(found) == 0 {
		return nil
	}
	return []string{"LD_LIBRARY_PATH=" + strings.Join(found, string(filepath.ListSeparator))}
}

func apt(args ...string) error {
	cmd := exec.Command("apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	return output(cmd)
}

// install needs root. A policy that forbids every start keeps the packages from starting their
// servers.
func install(_ string, names []string) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can install packages")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return err
	}
	const policy = "/usr/sbin/policy-rc.d"
	if _, err := os.Stat(policy); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err == nil {
			defer func() { _ = os.Remove(policy) }()
		}
	}
	args := append([]string{"-y", "--no-install-recommends", "install"}, names...)
	first := apt(args...)
	if first == nil {
		return nil
	}
	if err := apt("update"); err != nil {
		return errors.Join(first, err)
	}
	return apt(args...)
}

// unpack needs no root: it downloads the packages and unpacks them into the cache.
func unpack(root string, names []string) error {
	debs := root + ".debs"
	if err := os.MkdirAll(filepath.Join(debs, "partial"), 0o755); err != nil {
		return err
	}
	args := append([]string{
		"-o", "Debug::NoLocking=1", "-o", "Dir::Cache=" + debs, "-o", "Dir::Cache::archives=" + debs,
		"-d", "-y", "--no-install-recommends", "install",
	}, names...)
	if err := apt(args...); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("apt-get fetched no packages into %s", debs)
	}
	for _, deb := range files {
		if err := output(exec.Command("dpkg", "-x", deb, root)); err != nil {
			return err
		}
	}
	return os.RemoveAll(debs)
}
