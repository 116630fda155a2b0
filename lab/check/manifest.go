package check

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// fileSum is the number of events in a file and the SHA-256 of their lines. The last
// line of a file, written by its Writer, says the same.
type fileSum struct {
	Lines  int64  `json:"lines"`
	SHA256 string `json:"sha256"`
}

// WriteManifest lists the files of a history whose writers are closed. A history
// without a manifest does not pass the check "history".
func WriteManifest(dir string) error {
	paths, err := files(dir)
	if err != nil {
		return err
	}
	m := manifest{Files: map[string]fileSum{}}
	for _, path := range paths {
		said, found, err := sumOf(path)
		if err == nil && said != found {
			err = fmt.Errorf("check: %s: its last line says %+v and its content is %+v", path, said, found)
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

// sumOf reads what the last line of a file says, and computes the same from the others.
func sumOf(path string) (said, found fileSum, err error) {
	f, err := os.Open(path)
	if err != nil {
		return said, found, fmt.Errorf("check: %w", err)
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReaderSize(f, 256<<10)
	sum := sha256.New()
	var last []byte
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			_, _ = sum.Write(last) // it cannot fail
			found.Lines += int64(bytes.Count(last, []byte("\n")))
			last = append(last[:0], line...)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return said, found, fmt.Errorf("check: %w", err)
		}
	}
	found.SHA256 = hex.EncodeToString(sum.Sum(nil))
	_ = json.Unmarshal(last, &said) // what it does not say differs from what was found
	return said, found, nil
}

// manifested compares the files of a history with its manifest and their own last
// lines, and returns the digest of the manifest.
func manifested(dir string, broken func(*historyError)) (digest string, err error) {
	doubt := func(file, format string, args ...any) {
		broken(&historyError{Place{File: file}, fmt.Sprintf(format, args...)})
	}
	data, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if errors.Is(err, fs.ErrNotExist) {
		doubt(manifestFile, "recorded before the stricter checks: there is no manifest of the files")
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("check: %w", err)
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		doubt(manifestFile, "no manifest: %v", err)
	}
	paths, err := files(dir)
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		name := filepath.Base(path)
		said, found, err := sumOf(path)
		if err != nil {
			return "", err
		}
		if want, listed := m.Files[name]; !listed {
			doubt(name, "the manifest does not list this file")
		} else if said != found || want != found {
			doubt(name, "the content was changed: it has %d lines with digest %.12s; its last line says %d with %.12s, the manifest %d with %.12s",
				found.Lines, found.SHA256, said.Lines, said.SHA256, want.Lines, want.SHA256)
		}
		delete(m.Files, name)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Files)) {
		doubt(name, "the file is missing: the manifest lists it")
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}
