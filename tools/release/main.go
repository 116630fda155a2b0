// Command release makes a release out of the newest commit: a repository in which no module
// replaces another, with a tag for each module, and a module proxy in a folder that serves
// exactly that. Nothing is published; the tags of the repository are what to push.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/zip"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: release VERSION FOLDER\n\nMakes FOLDER/repository (tagged) and FOLDER/proxy from the newest commit of the repository in the current directory.")
	}
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	modules, err := Make(".", flag.Arg(0), flag.Arg(1))
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	for _, m := range modules {
		fmt.Println(m.Tag)
	}
}

// Module is one module of the release.
type Module struct {
	Path string // such as github.com/tenurehq/tenure/raft
	Dir  string // below the repository, "." for the root
	Tag  string // such as raft/v0.1.0
	file *modfile.File
}

// private are folders whose modules nobody imports.
var private = []string{"tools", "lab", "examples"}

// Make makes the release in a folder that does not exist yet, and returns its modules, each
// after those that it needs.
func Make(repository, version, folder string) ([]Module, error) {
	if !semver.IsValid(version) || semver.Build(version) != "" || semver.Canonical(version) != version {
		return nil, fmt.Errorf("%q is not a version like v0.1.0", version)
	}
	if dirty, err := run(repository, nil, "git", "status", "--porcelain"); err != nil {
		return nil, err
	} else if dirty != "" {
		return nil, errors.New("the tree has changes that are not committed")
	}
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		return nil, err
	}
	source := filepath.Join(folder, "repository")
	if _, err := run(repository, nil, "git", "clone", "--quiet", "--no-hardlinks", ".", source); err != nil {
		return nil, err
	}
	modules, err := find(source, version)
	if err != nil {
		return nil, err
	}
	proxy := filepath.Join(folder, "proxy")
	env := Environment(proxy)
	for _, m := range modules {
		if err := m.detach(source, version, modules); err != nil {
			return nil, err
		}
		if _, err := run(filepath.Join(source, m.Dir), env, "go", "mod", "tidy"); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Path, err)
		}
		if err := m.include(source); err != nil {
			return nil, err
		}
		if err := m.publish(source, version, proxy); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Path, err)
		}
	}
	if _, err := run(source, nil, "git", "commit", "--quiet", "--all", "--message", version); err != nil {
		return nil, err
	}
	for _, m := range modules {
		if _, err := run(source, nil, "git", "tag", m.Tag); err != nil {
			return nil, err
		}
	}
	return modules, nil
}

// Environment makes the go command use the proxy in the folder before any other, with a module
// cache beside it: the cache of this machine may have another build of the same version. The
// checksum database cannot know what is not published yet.
func Environment(proxy string) []string {
	others, err := run(".", nil, "go", "env", "GOPROXY")
	if err != nil || others == "" {
		others = "off"
	}
	if shared, err := run(".", nil, "go", "env", "GOMODCACHE"); err == nil {
		others = "file://" + filepath.Join(shared, "cache", "download") + "," + others
	}
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -modcacherw", "GONOSUMDB=github.com/tenurehq/*",
		"GOMODCACHE="+filepath.Join(filepath.Dir(proxy), "cache"), "GOPROXY=file://"+proxy+","+others)
}

// find lists the public modules of the repository, each after those that it needs.
func find(source, version string) ([]Module, error) {
	var all []Module
	err := filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(source, filepath.Dir(path))
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == ".git") {
			return fs.SkipDir
		}
		if d.Name() != "go.mod" || slices.Contains(private, strings.Split(filepath.ToSlash(dir), "/")[0]) {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := modfile.Parse(path, data, nil)
		if err != nil {
			return err
		}
		m := Module{Path: file.Module.Mod.Path, Dir: dir, Tag: version, file: file}
		if dir != "." {
			m.Tag = filepath.ToSlash(dir) + "/" + version
		}
		all = append(all, m)
		return nil
	})
	if err != nil {
		return nil, err
	}
	var sorted []Module
	for len(all) > 0 {
		i := slices.IndexFunc(all, func(m Module) bool {
			return !slices.ContainsFunc(m.file.Require, func(r *modfile.Require) bool {
				return slices.ContainsFunc(all, func(o Module) bool { return o.Path == r.Mod.Path })
			})
		})
		if i < 0 {
			return nil, errors.New("modules need each other in a circle")
		}
		sorted = append(sorted, all[i])
		all = slices.Delete(all, i, i+1)
	}
	return sorted, nil
}

// detach makes the module need its siblings in the version instead of beside it.
func (m Module) detach(source, version string, all []Module) error {
	sibling := func(path string) bool { return slices.ContainsFunc(all, func(o Module) bool { return o.Path == path }) }
	for _, r := range slices.Clone(m.file.Replace) {
		if !sibling(r.Old.Path) {
			return fmt.Errorf("%s replaces %s, which is no module of the release", m.Path, r.Old.Path)
		}
		if err := m.file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return err
		}
	}
	for _, r := range m.file.Require {
		if sibling(r.Mod.Path) {
			if err := m.file.AddRequire(r.Mod.Path, version); err != nil {
				return err
			}
		}
	}
	m.file.Cleanup()
	data, err := m.file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(source, m.Dir, "go.mod"), data, 0o644)
}

// include drops what go mod tidy had to be told to leave out: go install refuses to build a
// module that excludes anything.
func (m Module) include(source string) error {
	path := filepath.Join(source, m.Dir, "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	file, err := modfile.Parse(path, data, nil)
	if err != nil {
		return err
	}
	for _, e := range slices.Clone(file.Exclude) {
		if err := file.DropExclude(e.Mod.Path, e.Mod.Version); err != nil {
			return err
		}
	}
	file.Cleanup()
	if data, err = file.Format(); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// publish puts the module into the proxy.
func (m Module) publish(source, version, proxy string) (err error) {
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	at := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	dir := filepath.Join(source, m.Dir)
	file, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	info := fmt.Sprintf("{\"Version\":%q,\"Time\":%q}", version, time.Now().UTC().Format(time.RFC3339))
	for name, data := range map[string][]byte{version + ".mod": file, version + ".info": []byte(info), "list": []byte(version + "\n")} {
		if err := os.WriteFile(filepath.Join(at, name), data, 0o644); err != nil {
			return err
		}
	}
	out, err := os.Create(filepath.Join(at, version+".zip"))
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, out.Close()) }()
	return zip.CreateFromDir(out, module.Version{Path: m.Path, Version: version}, dir)
}

// run runs a command and returns what it printed.
func run(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, env
	var problem strings.Builder
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, problem.String())
	}
	return strings.TrimSpace(string(out)), nil
}
