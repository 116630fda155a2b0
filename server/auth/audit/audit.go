// Package audit writes the audit of the service: who did what.
//
// It is a file of JSON lines that is rotated by size. Elections do not wait for it: an
// entry is queued, written within milliseconds and synced within a second. A kill of the
// process can lose the last few entries, and a power failure those of the last second. While
// the disk is full or broken, entries wait in a bounded queue. Entries beyond it are dropped
// and counted; the log and the next line say how many. More than ten denials a second of one
// caller are counted instead of written, so that nobody can push other entries out of the file.
package audit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/auth/secret"
)

// File configures the file. Each instance needs a file of its own.
type File struct {
	// Path of the file. Full files become Path.1, Path.2 and so on; the oldest has the
	// highest number. Empty: entries go to the log instead.
	Path string
	// MaxBytes of one file. Default 64 MiB, at least 4 KiB.
	MaxBytes int64
	// Files kept in all. Default 8, at least 2.
	Files int
	// Queue is how many entries wait while the disk is full or broken. Default 8192.
	Queue int
}

// WithDefaults fills in the defaults.
func (f File) WithDefaults() File {
	f.MaxBytes, f.Files, f.Queue = cmp.Or(f.MaxBytes, 64<<20), cmp.Or(f.Files, 8), cmp.Or(f.Queue, 8192)
	return f
}

// Check refuses settings that cannot work.
func (f File) Check() error {
	if f.MaxBytes < 4<<10 || f.Files < 2 || f.Files > 1000 || f.Queue < 1 {
		return fmt.Errorf("auth: the audit has %d files of %d bytes and a queue of %d; want 2 to 1000 files, at least 4096 bytes and a queue of at least 1", f.Files, f.MaxBytes, f.Queue)
	}
	return nil
}

// The results of an audit entry.
const (
	Done    = "done"
	Denied  = "denied"  // not authenticated, or not allowed
	Limited = "limited" // over a limit
	Failed  = "failed"  // allowed, but it failed
	Pending = "pending" // accepted; the outcome is not known yet
)

// Entry is one line of the audit.
type Entry struct {
	At  string `json:"at"` // set by Write
	Who string `json:"who,omitempty"`
	How string `json:"how,omitempty"` // how the caller showed its identity
	// Remote is the address of the caller.
	Remote string `json:"remote,omitempty"`
	// Node is the node id that an anonymous caller gave.
	Node string `json:"node,omitempty"`
	// What is the operation: "campaign", "POST /v1/groups/{group}/resign".
	What   string      `json:"what"`
	Group  string      `json:"group,omitempty"`
	Token  fence.Token `json:"token,omitempty"`
	Result string      `json:"result"`
	// Reason is that of the caller, or why the request was refused.
	Reason string `json:"reason,omitempty"`
	// Omitted counts earlier denials and failures of this caller that have no line.
	Omitted int `json:"omitted,omitempty"`
	// Lost counts earlier lines that could not be written.
	Lost uint64 `json:"lost,omitempty"`
}

// encode returns the line of an entry.
func (e Entry) encode() []byte {
	// A struct of strings and numbers cannot fail. Invalid UTF-8 is replaced.
	b, _ := json.Marshal(e)
	return append(b, '\n')
}

// Writer writes entries from a bounded queue to the file.
type Writer struct {
	file  *appendFile // nil: entries go to the log
	log   *slog.Logger
	now   func() time.Time
	queue int

	mu    sync.Mutex
	held  [][]byte
	lost  uint64 // since the last line that reported it
	total uint64 // lost since the start
	fault string

	wake chan struct{}
}

// Open opens the file. Run writes to it.
func Open(cfg File, log *slog.Logger, now func() time.Time) (*Writer, error) {
	w := &Writer{log: log, now: now, queue: cfg.Queue, wake: make(chan struct{}, 1)}
	if cfg.Path == "" {
		return w, nil
	}
	w.file = &appendFile{path: cfg.Path, most: cfg.MaxBytes, files: cfg.Files}
	if err := w.file.open(); err != nil {
		return nil, fmt.Errorf("auth: open the audit file: %w", err)
	}
	return w, nil
}

// Write queues an entry. It does not block and does not fail.
func (w *Writer) Write(e Entry) {
	e.At = w.now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	for _, s := range []*string{&e.Who, &e.How, &e.Remote, &e.Node, &e.What, &e.Group, &e.Result, &e.Reason} {
		*s = secret.AtMost(secret.Redact(*s), 512)
	}
	if w.file == nil {
		w.log.Info("audit", "who", e.Who, "how", e.How, "remote", e.Remote, "node", e.Node, "what", e.What, "group", e.Group,
			"token", uint64(e.Token), "result", e.Result, "reason", e.Reason, "omitted", e.Omitted)
		return
	}
	w.add(e.encode())
}

func (w *Writer) add(b []byte) {
	w.mu.Lock()
	if len(w.held) >= w.queue {
		w.lost++
		w.total++
	} else {
		w.held = append(w.held, b)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// syncEvery is how often the file is synced, and how often a write is retried after an error.
const syncEvery = time.Second

// Run writes entries until closed, then writes the rest.
func (w *Writer) Run(closed <-chan struct{}) {
	if w.file == nil {
		return
	}
	t := time.NewTicker(syncEvery)
	defer t.Stop()
	broken := false
	for {
		select {
		case <-w.wake:
			// After an error only the tick retries, once a second.
			if !broken {
				broken = !w.told(w.drain())
			}
		case <-t.C:
			broken = !w.told(errors.Join(w.drain(), w.file.sync()))
		case <-closed:
			w.told(errors.Join(w.drain(), w.file.close()))
			if waiting, lost, _ := w.State(); waiting > 0 {
				w.log.Error("audit entries are lost", "waiting_at_shutdown", waiting, "lost_before", lost)
			}
			return
		}
	}
}

// drain writes the held entries, in pieces.
func (w *Writer) drain() error {
	piece := int(min(256<<10, w.file.most))
	for {
		w.mu.Lock()
		var buf bytes.Buffer
		if w.lost > 0 {
			buf.Write(Entry{At: w.now().UTC().Format(time.RFC3339Nano), What: "audit", Result: Failed, Reason: "lines before this one were lost", Lost: w.lost}.encode())
		}
		n, lost := 0, w.lost
		for n < len(w.held) && (buf.Len() == 0 || buf.Len()+len(w.held[n]) <= piece) {
			buf.Write(w.held[n])
			n++
		}
		w.mu.Unlock()
		if buf.Len() == 0 {
			return nil
		}
		if err := w.file.append(buf.Bytes()); err != nil {
			return err
		}
		w.mu.Lock()
		clear(w.held[:n])
		w.held = w.held[n:]
		if len(w.held) == 0 {
			w.held = nil
		}
		w.lost -= lost
		w.mu.Unlock()
	}
}

// told logs the first failure of a series, and its end. It reports whether err is nil.
func (w *Writer) told(err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil && w.fault == "":
		w.fault = err.Error()
		w.log.Error("cannot write the audit; entries wait and elections go on; check the disk", "error", err, "waiting", len(w.held))
	case err == nil && w.fault != "":
		w.fault = ""
		w.log.Info("the audit is written again")
	}
	return err == nil
}

// State returns how many entries wait and were lost, and why the file cannot be written now.
func (w *Writer) State() (waiting int, lost uint64, fault string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.held), w.total, w.fault
}
