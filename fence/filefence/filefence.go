package filefence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// The files of the fence in a directory; everything else in it is the user's.
const (
	ours     = ".tenure"
	markName = "mark"
	tempName = "new-"
)

// Dir is a directory guarded by a mark. Any number of processes and goroutines may use it;
// one at a time writes.
type Dir struct {
	path string
	// queue is taken before the kernel's lock: goroutines queue here in order, and only one of
	// them tries to lock.
	queue chan struct{}
	root  *os.Root
	done  sync.Once
	// durable is the mark that is known to be on disk, read and written under the lock. The
	// writer of a mark that we find may have been killed before it synced.
	durable fence.Mark
}

// Open guards an existing directory. It creates the folder .tenure in it.
func Open(path string) (*Dir, error) {
	if !canLock {
		return nil, fmt.Errorf("filefence: %s: no lock that ends with its process on this system: %w", path, errors.ErrUnsupported)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("filefence: %w", err)
	}
	d := &Dir{path: path, queue: make(chan struct{}, 1), root: root}
	if err := d.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("filefence: %w", err), root.Close())
	}
	return d, nil
}

func (d *Dir) prepare() error {
	if err := d.root.Mkdir(ours, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(syncDir(d.root, "."), syncDir(d.root, ours))
}

// Close closes the directory. The mark stays.
func (d *Dir) Close() error {
	var err error
	d.done.Do(func() { err = d.root.Close() })
	return err
}

// Do checks the stamp and, if it is admitted, runs fn: no other write through any Dir happens
// until fn returns. If fn fails or is killed, its writes so far stay, and so does the raised
// mark. fn cannot leave the root by a name or a link, and must not touch the folder .tenure.
//
// The error is a refusal (fence.ErrRefused), fn's own, or that of the file system. fn did not
// run unless the error is its own.
func (d *Dir) Do(ctx context.Context, s fence.Stamp, fn func(root *os.Root) error) error {
	return d.locked(ctx, func() error {
		if err := d.move(s, fence.Mark.Admit); err != nil {
			return err
		}
		// Storing the mark takes time, and fn has not started yet.
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("filefence: %s: %w", d.path, context.Cause(ctx))
		}
		return fn(d.root)
	})
}

// WriteFile writes a file under the stamp. The file is replaced as a whole or not at all, and
// is durable when WriteFile returns. The name is relative to the directory, and its folders
// must exist.
func (d *Dir) WriteFile(ctx context.Context, s fence.Stamp, name string, data []byte, perm fs.FileMode) error {
	if err := allowed(name); err != nil {
		return fmt.Errorf("filefence: %s: %w", d.path, err)
	}
	return d.Do(ctx, s, func(root *os.Root) error {
		name := filepath.Clean(name)
		err := checkLinks(root, name)
		if err == nil {
			err = replace(root, name, data, perm)
		}
		if err != nil {
			return fmt.Errorf("filefence: %s: %w", d.path, err)
		}
		return nil
	})
}

// allowed refuses names outside the directory and in the fence's own folder.
func allowed(name string) error {
	clean := filepath.Clean(name)
	first, _, _ := strings.Cut(filepath.ToSlash(clean), "/")
	switch {
	case !filepath.IsLocal(name) || clean == ".":
		return &fs.PathError{Op: "write", Path: name, Err: errors.New("the name leaves the directory")}
	case strings.EqualFold(first, ours):
		return &fs.PathError{Op: "write", Path: name, Err: errOurs}
	}
	return nil
}

var errOurs = errors.New("the folder belongs to the fence")

// checkLinks refuses names that reach the fence's own folder through a link.
func checkLinks(root *os.Root, name string) error {
	folder, err := root.Stat(filepath.Dir(name))
	if err != nil {
		return err
	}
	fences, err := root.Stat(ours)
	if err == nil && os.SameFile(folder, fences) {
		err = &fs.PathError{Op: "write", Path: name, Err: errOurs}
	}
	return err
}

// Seal raises the mark to the stamp's token before the first write.
func (d *Dir) Seal(ctx context.Context, s fence.Stamp) error {
	return d.locked(ctx, func() error { return d.move(s, fence.Mark.Admit) })
}

// Advance raises the mark to any token, past the slip rule. It never lowers it.
func (d *Dir) Advance(ctx context.Context, s fence.Stamp) error {
	return d.locked(ctx, func() error { return d.move(s, fence.Mark.Advance) })
}

// Mark returns the mark.
func (d *Dir) Mark(ctx context.Context) (m fence.Mark, err error) {
	err = d.locked(ctx, func() error {
		m, err = d.load()
		return err
	})
	return m, err
}

// move sets the mark to what the rule returns, under the lock.
func (d *Dir) move(s fence.Stamp, rule func(fence.Mark, fence.Stamp) (fence.Mark, error)) error {
	m, err := d.load()
	if err != nil {
		return err
	}
	next, err := rule(m, s)
	if err != nil {
		return fmt.Errorf("filefence: %s: %w", d.path, err)
	}
	if next == m && m == d.durable {
		return nil
	}
	// Store also an unchanged mark that is not known to be durable. Write it again: a sync of
	// another process's file may miss its errors.
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := replace(d.root, filepath.Join(ours, markName), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("filefence: %s: the mark was not stored, so nothing is written: %w", d.path, err)
	}
	d.durable = next
	return nil
}

// load reads the mark. A mark that cannot be read is an error, not a first contact, which
// would admit any token.
func (d *Dir) load() (m fence.Mark, err error) {
	text, err := d.root.ReadFile(filepath.Join(ours, markName))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("filefence: the mark cannot be read, so nothing is written: %w", err)
	}
	err = json.Unmarshal(text, &m)
	if err == nil && !m.Token.Valid() {
		err = errors.New("it has no token")
	}
	if err != nil {
		// Not wrapped: the stamp is not at fault, so this must not look like a refusal.
		return fence.Mark{}, errors.New("filefence: " + d.path + ": the mark is damaged, so nothing is written: " + err.Error())
	}
	return m, nil
}

// locked runs f while no other Dir does, in this process or another.
func (d *Dir) locked(ctx context.Context, f func() error) error {
	select {
	case d.queue <- struct{}{}:
		defer func() { <-d.queue }()
	case <-ctx.Done():
		return fmt.Errorf("filefence: %s: waiting for the lock: %w", d.path, context.Cause(ctx))
	}
	// Lock the directory itself: a lock file could be deleted and created again, which would
	// allow a second holder.
	lock, err := d.root.Open(".")
	if err != nil {
		return fmt.Errorf("filefence: %w", err)
	}
	// Closing the file releases the lock.
	defer func() { _ = lock.Close() }()
	// Poll, because a blocking flock does not obey a context.
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		got, err := tryLock(lock)
		if err != nil {
			return fmt.Errorf("filefence: %s: lock: %w", d.path, err)
		}
		if got {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("filefence: %s: waiting for the lock: %w", d.path, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
	if err := d.sweep(); err != nil {
		return fmt.Errorf("filefence: %w", err)
	}
	return f()
}

// sweep removes the temporary files of killed processes. The caller holds the lock, so no
// other process is writing.
func (d *Dir) sweep() error {
	entries, err := fs.ReadDir(d.root.FS(), ours)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempName) {
			if err := d.root.Remove(filepath.Join(ours, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace writes a temporary file, syncs it, renames it and syncs the folder: after a crash
// the old or the new file is there, complete.
func replace(root *os.Root, name string, data []byte, perm fs.FileMode) error {
	temp := filepath.Join(ours, tempName+filepath.Base(name))
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = root.Rename(temp, name)
	}
	if err != nil {
		// After a failed sync the next one may succeed, so discard the file.
		_ = root.Remove(temp)
		return err
	}
	return syncDir(root, filepath.Dir(name))
}

func syncDir(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
