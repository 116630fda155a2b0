package history

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// manifestFile lists the files of a history with their digests.
const manifestFile = "manifest.json"

type manifest struct {
	Files map[string]fileSum `json:"files"`
}

// fileSum is the number of events in a file and the SHA-256 of their lines.
type fileSum struct {
	Lines  int    `json:"lines"`
	SHA256 string `json:"sha256"`
}

// WriteManifest lists the files of a history whose writers are closed. A history without
// a manifest does not pass the check "history".
func WriteManifest(dir string) error {
	d, err := Open(dir, nil)
	if err != nil {
		return err
	}
	m := manifest{map[string]fileSum{}}
	for _, path := range d.files {
		said, found, err := sumOf(path)
		if err == nil && said != found {
			err = fmt.Errorf("history %s: its last line says %+v, and its content is %+v", path, said, found)
		}
		if err != nil {
			return err
		}
		m.Files[filepath.Base(path)] = found
	}
	data, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, manifestFile), append(data, '\n'), 0o644)
}

// HasManifest reports whether there is a manifest. Histories without one are older and
// lack some of the events that the checks compare.
func (d *Dir) HasManifest() bool {
	_, err := os.Stat(filepath.Join(d.path, manifestFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// Verify compares the files with the manifest and with their own last lines. It returns
// the SHA-256 of the manifest; empty: there is none.
func (d *Dir) Verify() (digest string, err error) {
	damaged := func(file, format string, args ...any) {
		d.damaged(Damage{Place{File: file}, fmt.Sprintf(format, args...)})
	}
	if !d.HasManifest() {
		damaged(manifestFile, "recorded before the stricter checks: the history has no manifest")
		return "", nil
	}
	data, err := os.ReadFile(filepath.Join(d.path, manifestFile))
	if err != nil {
		return "", fmt.Errorf("history: %w", err)
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		damaged(manifestFile, "the manifest cannot be read: %v", err)
	}
	for _, path := range d.files {
		name := filepath.Base(path)
		said, found, err := sumOf(path)
		want, listed := m.Files[name]
		delete(m.Files, name)
		if damage, ok := errors.AsType[*Damage](err); ok {
			d.damaged(*damage)
			continue
		}
		switch {
		case err != nil:
			return "", err
		case !listed:
			damaged(name, "the manifest does not list this file")
		case said != found || want != found:
			damaged(name, "the content was changed: it has %d lines with digest %.12s; its last line says %d with %.12s, the manifest %d with %.12s",
				found.Lines, found.SHA256, said.Lines, said.SHA256, want.Lines, want.SHA256)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Files)) {
		damaged(name, "the manifest lists this file, and it is missing")
	}
	return fmt.Sprintf("%x", sha256.Sum256(data)), nil
}
