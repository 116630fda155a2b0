package lab

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tenurehq/tenure/lab/labapi"
)

// heldFile is locked while its temporary folder is in use.
const (
	folderPattern = "tenure-lab-"
	heldFile      = "lab.lock"
)

// ErrHeld: another process uses the folder.
var ErrHeld = errors.New("lab: another process uses the folder")

// folder creates the folder, and removes those of labs that were killed.
func (f *Fleet) folder() error {
	if f.cfg.Dir != "" {
		abs, err := filepath.Abs(f.cfg.Dir)
		if err != nil {
			return err
		}
		f.dir = abs
		return os.MkdirAll(abs, 0o755)
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), folderPattern+"*", heldFile))
	if err != nil {
		return err
	}
	for _, path := range left {
		if release, err := Hold(path); err == nil {
			_ = os.RemoveAll(filepath.Dir(path)) // it may be another user's
			release()
		}
	}
	// The lock file gets its name once it is locked: before that it would look abandoned.
	dir, err := os.MkdirTemp("", folderPattern)
	if err != nil {
		return err
	}
	f.dir = dir
	taken := filepath.Join(dir, heldFile+"-new")
	release, err := Hold(taken)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	f.release = release
	return os.Rename(taken, filepath.Join(dir, heldFile))
}

// File returns the current fleet file.
func (f *Fleet) File() labapi.FleetFile {
	out := labapi.FleetFile{Group: f.cfg.Group, Backend: f.cfg.Backend, TTLMS: f.cfg.TTL.Milliseconds(), Dir: f.dir, Lab: true,
		Ledger: labapi.LedgerFile{Process: f.ledgers[0].inFile(), DB: f.db()}}
	for i, p := range f.engines {
		out.Engines = append(out.Engines, labapi.EngineFile{ID: p.id, Process: p.inFile()})
		if i == 0 {
			out.Engine = out.Engines[0].Process
		}
	}
	for i, p := range f.nodes {
		out.Nodes = append(out.Nodes, labapi.NodeFile{ID: p.id, Process: labapi.Process{URL: f.public[i], PID: p.pid()}, Proxies: f.names[i]})
	}
	for _, p := range f.workers {
		out.Workers = append(out.Workers, labapi.WorkerFile{ID: p.id, Process: p.inFile()})
	}
	if f.proxies != nil {
		out.Proxies.API = f.proxies.url
	}
	return out
}

// Path is the path of the fleet file.
func (f *Fleet) Path() string {
	return cmp.Or(f.cfg.File, filepath.Join(f.dir, "fleet.json"))
}

// write replaces the fleet file atomically.
func (f *Fleet) write() error {
	f.writing.Lock()
	defer f.writing.Unlock()
	data, err := json.MarshalIndent(f.File(), "", "  ")
	if err != nil {
		return err
	}
	tmp := f.Path() + ".new"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the fleet file: %w", errors.Join(err, os.Remove(tmp)))
	}
	return os.Rename(tmp, f.Path())
}
