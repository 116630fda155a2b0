package auth

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/tenurehq/tenure/server/auth/bearer"
)

const maxFile = 32 << 20

// source is one or two files that are read and put into force together.
type source struct {
	name    string
	paths   []string
	use     func(texts [][]byte) error
	inForce [sha256.Size]byte
	loaded  time.Time // when the content in force was read
	failure string    // why the current file is not in force
}

func (g *Gate) sources() []*source {
	all := []*source{
		{name: "certificate", paths: []string{g.cfg.TLS.Cert, g.cfg.TLS.Key}, use: func(t [][]byte) error {
			pair, err := parsePair(t[0], t[1], g.cfg.Now())
			return keepParsed(pair, err, g.pair.Store)
		}},
		{name: "client CAs", paths: []string{g.cfg.TLS.ClientCAs}, use: func(t [][]byte) error {
			cas, err := parseAuthorities(t[0])
			return keepParsed(cas, err, g.cas.Store)
		}},
		{name: "JWT keys", paths: []string{g.cfg.JWT.Keys}, use: func(t [][]byte) error {
			keys, err := bearer.ParseKeys(t[0])
			return keepParsed(keys, err, g.jwt.Use)
		}},
		{name: "credentials", paths: []string{g.cfg.Credentials}, use: func(t [][]byte) error {
			all, err := bearer.ParseCredentials(t[0])
			return keepParsed(&all, err, g.credentials.Store)
		}},
		{name: "policy", paths: []string{g.cfg.Policy}, use: func(t [][]byte) error {
			p, err := parsePolicy(t[0])
			return keepParsed(p, err, g.policy.Store)
		}},
	}
	return slices.DeleteFunc(all, func(s *source) bool { return s.paths[0] == "" })
}

// keepParsed puts what was parsed into force.
func keepParsed[T any](parsed T, err error, use func(T)) error {
	if err == nil {
		use(parsed)
	}
	return err
}

// Reload reads the files and puts changed ones into force. The error names broken files; their
// previous content stays in force.
func (g *Gate) Reload() error {
	g.filesMu.Lock()
	defer g.filesMu.Unlock()
	var errs []error
	for _, s := range g.files {
		changed, err := s.load(g.cfg.Now())
		switch {
		case err != nil && err.Error() != s.failure:
			s.failure = err.Error()
			if !s.loaded.IsZero() {
				g.cfg.Log.Error("a file is broken; its previous content stays in force", "what", s.name, "error", s.failure, "in_force_since", s.loaded)
			}
		case err == nil && (changed || s.failure != ""):
			s.failure = ""
			g.cfg.Log.Info("read a file", "what", s.name, "sha256", fmt.Sprintf("%x", s.inForce[:4]))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// load reads the files. It compares contents, not times: a file can be replaced twice within
// one tick of its clock, or by an older one.
func (s *source) load(now time.Time) (changed bool, err error) {
	texts := make([][]byte, len(s.paths))
	sum := sha256.New()
	for i, path := range s.paths {
		if texts[i], err = readFile(path); err != nil {
			return false, fmt.Errorf("auth: read %s: %w", s.name, err)
		}
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(texts[i]))))
		sum.Write(texts[i])
	}
	d := [sha256.Size]byte(sum.Sum(nil))
	if d == s.inForce && !s.loaded.IsZero() {
		return false, nil
	}
	if err := s.use(texts); err != nil {
		return false, fmt.Errorf("auth: %s %s: %w", s.name, s.paths[0], err)
	}
	s.inForce, s.loaded = d, now
	return true, nil
}

func readFile(path string) ([]byte, error) {
	// Opening a pipe would block forever.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return text, err
}

// poll reloads until the gate is closed.
func (g *Gate) poll() {
	tick := time.NewTicker(g.cfg.Poll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = g.Reload() // Reload has logged the error
		case <-g.closed:
			return
		}
	}
}
