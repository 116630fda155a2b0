package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/child"
)

// builds bounds one build. The largest takes ten minutes on two idle cores.
const builds = time.Hour

// program is a program of another project, built from its Go module.
type program struct {
	name    string
	version string
	pkg     string
	// module is the go.mod to build it with. It repeats, with versions, the replacements that
	// point into the project's checkout.
	module func(ctx context.Context) (string, error)
	takes  string
}

func etcdctl() program {
	return program{
		name: "etcdctl", version: etcdctlVersion, pkg: "go.etcd.io/etcd/etcdctl/v3", takes: "a minute",
		module: plain("go.etcd.io/etcd/etcdctl/v3 " + etcdctlVersion),
	}
}

// consul's licence permits use and not resale: it is only run here.
func consul() program {
	return program{
		name: "consul", version: consulVersion, pkg: "github.com/hashicorp/consul", takes: "six minutes",
		module: plain("github.com/hashicorp/consul "+consulVersion, "github.com/hashicorp/consul/api v1.34.1"),
	}
}

func kubeAPIServer() program {
	return program{
		name: "kube-apiserver", version: kubeVersion, pkg: "k8s.io/kubernetes/cmd/kube-apiserver", takes: "six minutes",
		module: func(ctx context.Context) (string, error) {
			staging, err := replacements(ctx, "k8s.io/kubernetes@"+kubeVersion)
			if err != nil {
				return "", err
			}
			text, err := plain("k8s.io/kubernetes " + kubeVersion)(ctx)
			for _, path := range staging {
				text += fmt.Sprintf("replace %s => %s v0%s\n", path, path, strings.TrimPrefix(kubeVersion, "v1"))
			}
			return text, err
		},
	}
}

func plain(requires ...string) func(context.Context) (string, error) {
	text := "module compare.example/program\n\ngo 1.26.0\n"
	for _, r := range requires {
		text += "require " + r + "\n"
	}
	return func(context.Context) (string, error) { return text, nil }
}

// replacements are the modules that a module replaces by folders of its checkout.
func replacements(ctx context.Context, module string) ([]string, error) {
	dir := os.TempDir()
	out, err := goCommand(ctx, dir, "mod", "download", "-json", module)
	var downloaded struct{ GoMod string }
	if err == nil {
		err = json.Unmarshal(out, &downloaded)
	}
	if err == nil {
		out, err = goCommand(ctx, dir, "mod", "edit", "-json", downloaded.GoMod)
	}
	var mod struct {
		Replace []struct{ Old struct{ Path string } }
	}
	if err == nil {
		err = json.Unmarshal(out, &mod)
	}
	var paths []string
	for _, r := range mod.Replace {
		paths = append(paths, r.Old.Path)
	}
	return paths, err
}

func goCommand(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false")
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return out, err
}

// obtain builds the program once, and returns why if it cannot.
func (p program) obtain(t *testing.T) (string, error) {
	t.Helper()
	cache, err := child.CacheDir("compare")
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, p.name+"-"+p.version)
	unlock, err := child.LockFile(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	fmt.Printf("building %s %s, once: this takes about %s\n", p.name, p.version, p.takes)
	ctx, cancel := context.WithTimeout(t.Context(), builds)
	defer cancel()
	module, err := p.module(ctx)
	if err != nil {
		return "", err
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(module), 0o644); err != nil {
		return "", err
	}
	began := time.Now()
	built := filepath.Join(dir, p.name)
	if _, err := goCommand(ctx, dir, "build", "-mod=mod", "-ldflags=-s -w", "-o", built, p.pkg); err != nil {
		return "", err
	}
	fmt.Printf("built %s in %v\n", p.name, time.Since(began).Round(time.Second))
	// Copy to a temporary name first, so that the program is never incomplete.
	text, err := os.ReadFile(built)
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o755)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	return path, err
}

// buildTenure builds the program of this checkout, each time.
func buildTenure(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	top, err := child.Repository(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), builds)
	defer cancel()
	path := filepath.Join(t.TempDir(), "tenure")
	if _, err := goCommand(ctx, filepath.Join(top, "server"), "build", "-o", path, "./cmd/tenure"); err != nil {
		t.Fatal(err)
	}
	return path
}

// notBuilt is the cell of a program that cannot be built.
func notBuilt(err error) string {
	first, _, _ := strings.Cut(err.Error(), "\n")
	return "could not be built here: " + strings.ReplaceAll(first, "|", "/")
}
