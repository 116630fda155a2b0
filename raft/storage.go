package raft

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	hraft "github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// storage is a node's data directory.
type storage struct {
	bolt      *raftboltdb.BoltStore
	logs      hraft.LogStore
	snapshots hraft.SnapshotStore
	identity  identity
	fresh     bool // nothing was ever written
}

// identity says which node the directory belongs to. A node with the directory of another
// would have the other's votes instead of its own.
type identity struct {
	Group   string `json:"group"`
	ID      string `json:"id"`
	Founded string `json:"founded"` // hash of the peers of a new cluster; "" for one who joined
}

const (
	identityKey = "tenure-identity"
	boltFile    = "raft.db"
	// inUseBound is how long to wait for a directory that is in use: a process that is being
	// replaced needs a moment to end.
	inUseBound = 2 * time.Second
	retained   = 2   // snapshots
	cachedLogs = 128 // entries that followers still have to be sent
)

func openStorage(cfg Config, log *logSink) (s *storage, err error) {
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("raft: data directory: %w", err)
	}
	path := filepath.Join(cfg.DataDir, boltFile)
	begun, err := intact(path)
	if err == nil && !begun {
		err = room(cfg.DataDir)
	}
	if err != nil {
		return nil, fmt.Errorf("raft: data directory: %w", err)
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{Timeout: inUseBound}})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("raft: data directory %s: %w (waited %v for the lock of %s)", cfg.DataDir, ErrDataInUse, inUseBound, boltFile)
	case err != nil:
		return nil, fmt.Errorf("raft: data directory: opening %s: %w", path, err)
	}
	done := false // the libraries may panic
	defer func() {
		if !done {
			_ = bolt.Close()
		}
	}()
	s = &storage{bolt: bolt}
	// After the lock is held: room writes to the directory.
	if begun {
		if err := room(cfg.DataDir); err != nil {
			return nil, fmt.Errorf("raft: data directory: %w", err)
		}
	}
	if s.snapshots, err = hraft.NewFileSnapshotStoreWithLogger(cfg.DataDir, retained, log.logger("snapshot")); err != nil {
		return nil, fmt.Errorf("raft: data directory %s: snapshots: %w", cfg.DataDir, err)
	}
	if s.logs, err = hraft.NewLogCache(cachedLogs, bolt); err != nil {
		return nil, fmt.Errorf("raft: %w", err)
	}
	if cfg.logs != nil {
		s.logs = cfg.logs(s.logs)
	}
	used, err := hraft.HasExistingState(bolt, bolt, s.snapshots)
	if err != nil {
		return nil, fmt.Errorf("raft: data directory %s: %w", cfg.DataDir, err)
	}
	s.fresh = !used
	if err := s.identify(cfg); err != nil {
		return nil, err
	}
	done = true
	return s, nil
}

// intact reports whether the log was begun before. If it is shorter than bolt makes a new
// one, it was truncated, and votes are lost.
func intact(path string) (begun bool, err error) {
	const least = 4 * 4 << 10 // as bolt begins it, with the smallest pages
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode().IsRegular() && info.Size() > 0 && info.Size() < least:
		return false, fmt.Errorf("%s is torn: it has %d bytes, and the least is %d: this node has lost its votes, and must come back under a new id", path, info.Size(), least)
	}
	return info.Size() > 0, nil
}

// room returns an error unless the log has room to grow. Raft panics when it cannot write a
// vote, so a full disk is better found here.
func room(dir string) error {
	const size, chunk = 4 << 20, 64 << 10
	f, err := os.CreateTemp(dir, "room-*")
	if err != nil {
		return err
	}
	buf := make([]byte, chunk)
	for written := 0; written < size && err == nil; written += chunk {
		_, err = f.Write(buf)
	}
	if err = errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		return fmt.Errorf("%s has no room for %d MiB: %w", dir, size>>20, err)
	}
	return nil
}

// identify checks that the directory is this node's. It marks a new one.
func (s *storage) identify(cfg Config) error {
	raw, err := s.bolt.Get([]byte(identityKey))
	switch {
	case err == nil:
		if err := json.Unmarshal(raw, &s.identity); err != nil {
			return fmt.Errorf("raft: data directory %s: its identity is unreadable: %w", cfg.DataDir, err)
		}
		if s.identity.Group != cfg.Group || s.identity.ID != cfg.Candidate.ID {
			return fmt.Errorf("raft: data directory %s belongs to node %q of group %q, not to %q of %q", cfg.DataDir, s.identity.ID, s.identity.Group, cfg.Candidate.ID, cfg.Group)
		}
		return nil
	case !errors.Is(err, raftboltdb.ErrKeyNotFound):
		return fmt.Errorf("raft: data directory %s: %w", cfg.DataDir, err)
	case !s.fresh:
		return fmt.Errorf("raft: data directory %s has the state of another program", cfg.DataDir)
	}
	s.identity = identity{Group: cfg.Group, ID: cfg.Candidate.ID}
	if !cfg.Join {
		s.identity.Founded = founded(cfg)
	}
	raw, err = json.Marshal(s.identity)
	if err == nil {
		err = s.bolt.Set([]byte(identityKey), raw)
	}
	if err != nil {
		return fmt.Errorf("raft: data directory %s: %w", cfg.DataDir, err)
	}
	return nil
}

// founded returns a hash of the peers. It is equal on nodes with equal peers.
func founded(cfg Config) string {
	h := sha256.New()
	for _, id := range cfg.peerIDs() {
		h.Write([]byte(id + "=" + cfg.Peers[id] + "\n")) // never an error
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// bootstrap writes the first configuration into an empty log. Every founder writes the same,
// so their order does not matter. A node that crashed between identify and bootstrap does it
// at its next start.
func (s *storage) bootstrap(cfg Config, conf *hraft.Config, trans hraft.Transport) error {
	if !s.fresh || s.identity.Founded == "" {
		return nil
	}
	var c hraft.Configuration
	for _, id := range cfg.peerIDs() {
		c.Servers = append(c.Servers, hraft.Server{ID: hraft.ServerID(id), Address: hraft.ServerAddress(cfg.Peers[id])})
	}
	if err := hraft.BootstrapCluster(conf, s.logs, s.bolt, s.snapshots, trans, c); err != nil {
		return fmt.Errorf("raft: data directory %s: beginning the cluster: %w", cfg.DataDir, err)
	}
	return nil
}

func (s *storage) close() error { return s.bolt.Close() }
