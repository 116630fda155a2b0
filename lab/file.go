package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tenurehq/tenure/lab/labapi"
)

// heldFile, in a temporary folder of ours, is locked while the folder is in use.
const (
	folderPattern = "tenure-lab-"
	heldFile      = "lab.lock"
)

// ErrHeld: another process uses the folder.
var ErrHeld = errors.New("lab: another process uses it")

// folder makes the folder, and removes those of labs that were killed.
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
			_ = os.RemoveAll(filepath.Dir(path)) // what is another user's stays
			release()
		}
	}
	// Until it is locked it must not look like one that was left.
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

// File says where everything is now.
func (f *Fleet) File() labapi.FleetFile {
	out := labapi.FleetFile{Group: f.cfg.Group, Backend: f.cfg.Backend, TTLMS: f.cfg.TTL.Milliseconds(), Dir: f.dir, Lab: true,
		Ledger: labapi.LedgerFile{Process: labapi.Process{URL: f.ledger.at(), PID: f.ledger.pid()}, DB: f.db()}}
	for i, p := range f.engines {
		out.Engines = append(out.Engines, labapi.EngineFile{ID: p.id, Process: labapi.Process{URL: p.at(), PID: p.pid()}})
		if i == 0 {
			out.Engine = out.Engines[0].Process
		}
	}
	for i, p := range f.nodes {
		out.Nodes = append(out.Nodes, labapi.NodeFile{ID: p.id, Process: labapi.Process{URL: f.public[i], PID: p.pid()}, Proxies: f.names[i]})
	}
	for _, p := range f.workers {
		out.Workers = append(out.Workers, labapi.WorkerFile{ID: p.id, Process: labapi.Process{URL: p.at(), PID: p.pid()}})
	}
	if f.proxies != nil {
		out.Proxies.API = f.proxies.url
	}
	return out
}

// Path is that of the fleet file.
func (f *Fleet) Path() string {
	if f.cfg.File != "" {
		return f.cfg.File
	}
	return filepath.Join(f.dir, "fleet.json")
}

// write replaces the fleet file in one step.
func (f *Fleet) write() error {
	f.writing.Lock()
	defer f.writing.Unlock()
	data, err := json.MarshalIndent(f.File(), "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(f.Path()), ".fleet-")
	if err != nil {
		return fmt.Errorf("the fleet file cannot be written: %w", err)
	}
	_, werr := tmp.Write(append(data, '\n'))
	if err := errors.Join(werr, tmp.Close()); err != nil {
		return errors.Join(fmt.Errorf("the fleet file cannot be written: %w", err), os.Remove(tmp.Name()))
	}
	return os.Rename(tmp.Name(), f.Path())
}
