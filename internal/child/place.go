package child

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
)

const module = "github.com/tenurehq/tenure"

// Repository finds the folder of the root module at or above dir.
func Repository(dir string) (string, error) {
	for at := dir; ; at = filepath.Dir(at) {
		text, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil {
			first, _, _ := strings.Cut(string(text), "\n")
			if strings.TrimSpace(first) == "module "+module {
				return at, nil
			}
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not inside a checkout of %s", dir, module)
		}
	}
}

// CacheDir is a folder in .cache, which git ignores and "make clean" removes, or in the user's
// cache if the checkout cannot be written.
func CacheDir(name string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	top, err := Repository(dir)
	if err == nil {
		dir = filepath.Join(top, ".cache", name)
		if err = writable(dir); err == nil {
			return dir, nil
		}
	}
	user, uerr := os.UserCacheDir()
	if uerr != nil {
		return "", errors.Join(err, uerr)
	}
	dir = filepath.Join(user, "tenure-"+name)
	return dir, writable(dir)
}

func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "try-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// FreePorts returns n free loopback addresses. Their ports are below those of outgoing
// connections, so that a program that is down for a while finds its port still free.
func FreePorts(n int) ([]string, error) {
	const low, high, tries = 12_000, 32_000, 1000
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	var free []string
	for range tries {
		if len(free) == n {
			return free, nil
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", low+rand.IntN(high-low)))
		if err != nil {
			continue
		}
		held = append(held, l)
		free = append(free, l.Addr().String())
	}
	return nil, fmt.Errorf("found no %d free ports between %d and %d", n, low, high)
}
