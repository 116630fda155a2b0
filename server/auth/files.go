package auth

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const maxFile = 32 << 20

// source is one or two files that are read and put into force together.
type source struct {
	name  string
	paths []string
	use   func(texts [][]byte) error

	inForce digest
	loaded  time.Time
	failure string
}

// Source tells how one of the files is doing.
type Source struct {
	Name string
	// Loaded is when what is in force was read.
	Loaded time.Time
	// Failure says why the file that is there now is not in force; empty if it is.
	Failure string
}

func (g *Gate) sources() []*source {
	var all []*source
	add := func(name string, use func([][]byte) error, paths ...string) {
		if paths[0] != "" {
			all = append(all, &source{name: name, paths: paths, use: use})
		}
	}
	add("certificate", func(t [][]byte) error {
		pair, err := parsePair(t[0], t[1], g.cfg.Now())
		if err == nil {
			g.pair.Store(pair)
		}
		return err
	}, g.cfg.TLS.Cert, g.cfg.TLS.Key)
	add("client CAs", func(t [][]byte) error {
		a, err := parseAuthorities(t[0])
		if err == nil {
			g.cas.Store(a)
		}
		return err
	}, g.cfg.TLS.ClientCAs)
	add("JWT keys", func(t [][]byte) error {
		keys, err := parseKeys(t[0])
		if err == nil {
			g.jwt.use(keys)
		}
		return err
	}, g.cfg.JWT.Keys)
	add("tokens", func(t [][]byte) error {
		all, err := parseTokens(t[0])
		if err == nil {
			g.tokens.Store(&all)
		}
		return err
	}, g.cfg.Tokens)
	add("policy", func(t [][]byte) error {
		p, err := parsePolicy(t[0])
		if err == nil {
			g.policy.Store(p)
		}
		return err
	}, g.cfg.Policy)
	return all
}

// Reload reads the files and puts into force what has changed. The error names those
// that are broken; what was in force before them still is.
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
				g.cfg.Log.Error("a file is broken: the one before stays in force", "what", s.name, "error", s.failure, "in_force_since", s.loaded)
			}
		case err == nil && (changed || s.failure != ""):
			s.failure = ""
			g.cfg.Log.Info("read", "what", s.name, "sha256", fmt.Sprintf("%x", s.inForce[:4]))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// load reads the files; by content, not by their times: a file can be replaced twice
// within one tick of its clock, or by an older one.
func (s *source) load(now time.Time) (changed bool, err error) {
	texts := make([][]byte, len(s.paths))
	sum := sha256.New()
	for i, path := range s.paths {
		if texts[i], err = readFile(path); err != nil {
			return false, fmt.Errorf("access: %s: %w", s.name, err)
		}
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(texts[i]))))
		sum.Write(texts[i])
	}
	d := digest(sum.Sum(nil))
	if d == s.inForce && !s.loaded.IsZero() {
		return false, nil
	}
	if err := s.use(texts); err != nil {
		return false, fmt.Errorf("access: %s %s: %w", s.name, s.paths[0], err)
	}
	s.inForce, s.loaded = d, now
	return true, nil
}

func readFile(path string) ([]byte, error) {
	// A pipe would block here for ever.
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

// Status tells how each file is doing.
func (g *Gate) Status() []Source {
	g.filesMu.Lock()
	defer g.filesMu.Unlock()
	all := make([]Source, len(g.files))
	for i, s := range g.files {
		all[i] = Source{s.name, s.loaded, s.failure}
	}
	return all
}

// poll reloads until the gate is closed.
func (g *Gate) poll() {
	tick := time.NewTicker(g.cfg.Poll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = g.Reload() // it has been logged
		case <-g.closed:
			return
		}
	}
}
