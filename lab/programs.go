package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/tenurehq/tenure/internal/child"
)

// The programs that a fleet is made of.
const (
	engineProgram = "engine"
	fleetProgram  = "labfleet"
)

// FindPrograms returns the folder of the programs of a fleet: dir if it is given, else that of
// this program, else a cache into which they are built. They can be built only inside a
// checkout. That takes a while, so say is called first.
func FindPrograms(ctx context.Context, dir string, say func(string)) (string, error) {
	if dir != "" {
		return dir, havePrograms(dir)
	}
	if self, err := os.Executable(); err == nil {
		if self, err = filepath.EvalSymlinks(self); err == nil && havePrograms(filepath.Dir(self)) == nil {
			return filepath.Dir(self), nil
		}
	}
	return build(ctx, say, "lab")
}

// FindPlanted returns the folder of programs in which bugs can be planted, for experiments:
// "planted" in dir if that is given, else a cache into which they are built.
func FindPlanted(ctx context.Context, dir string, say func(string)) (string, error) {
	if dir != "" {
		dir = filepath.Join(dir, "planted")
		return dir, havePrograms(dir)
	}
	return build(ctx, say, "lab-planted", "-tags", "planted")
}

func programPath(dir, name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(dir, name)
}

func havePrograms(dir string) error {
	var all error
	for _, name := range []string{engineProgram, fleetProgram} {
		info, err := os.Stat(programPath(dir, name))
		if err == nil && info.IsDir() {
			err = fmt.Errorf("%s is a folder", programPath(dir, name))
		}
		all = errors.Join(all, err)
	}
	return all
}

// buildLock is a file beside programs that may be rebuilt at any time.
const buildLock = "build.lock"

// whole waits until nobody builds programs in dir, and prevents that until unlock.
func whole(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, buildLock)
	if _, err := os.Stat(path); err != nil {
		return func() {}, nil // a lab did not build them
	}
	return child.LockFile(path)
}

func build(ctx context.Context, say func(string), name string, flags ...string) (string, error) {
	const hint = "build engine and labfleet next to lab, or give their folder with --bin"
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	top, err := child.Repository(dir)
	if err != nil {
		return "", fmt.Errorf("the programs of a fleet are not in the folder of this program, and %w; %s", err, hint)
	}
	cache, err := child.CacheDir(name)
	if err != nil {
		return "", err
	}
	unlock, err := child.LockFile(filepath.Join(cache, buildLock))
	if err != nil {
		return "", err
	}
	defer unlock()
	say("building engine and labfleet into " + cache)
	programs := []string{"server/cmd/engine", "lab/cmd/labfleet"}
	if err := child.Build(ctx, top, cache+string(filepath.Separator), flags, programs...); err != nil {
		return "", fmt.Errorf("%w; %s", err, hint)
	}
	return cache, nil
}
