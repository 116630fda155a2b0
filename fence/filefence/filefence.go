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

// What a directory has for the fence; everything else in it is the user's.
const (
	ours     = ".tenure"
	markName = "mark"
	tempName = "new-"
)

// Dir is a directory guarded by a mark. Any number of processes may have it open,
// and any number of goroutines may use it; one at a time works in it.
type Dir struct {
	path string
	// mine comes before the lock of the kernel: goroutines queue here, in order,
	// and only one of them asks for that.
	mine chan struct{}
	root *os.Root
	done sync.Once
	// durable is the mark that is known to be on the disk, under the lock. One
	// that is found may be somebody's who was killed before it was synced.
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
	d := &Dir{path: path, mine: make(chan struct{}, 1), root: root}
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

// Close ends the use of the directory. The mark stays.
func (d *Dir) Close() error {
	var err error
	d.done.Do(func() { err = d.root.Close() })
	return err
}

// Do checks the stamp, and runs fn if it is admitted: no other write through any
// Dir happens until fn returns. What fn has written when it fails or is killed
// stays; the mark is then the stamp's already. A root cannot be left by a name or a
// link; fn must not touch the folder .tenure.
//
// The error is a refusal (fence.ErrRefused: fn did not run), fn's own, or that of
// the file system, with fn not run.
func (d *Dir) Do(ctx context.Context, s fence.Stamp, fn func(root *os.Root) error) error {
	return d.locked(ctx, func() error {
		if err := d.move(s, fence.Mark.Admit); err != nil {
			return err
		}
		// Storing the mark took a while, and nothing has been done yet.
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("filefence: %s: %w", d.path, context.Cause(ctx))
		}
		return fn(d.root)
	})
}

// WriteFile writes a file under the stamp, or leaves the one that is there: it
// appears as a whole, and is durable when WriteFile returns. The name is relative
// to the directory, in which its folders exist.
func (d *Dir) WriteFile(ctx context.Context, s fence.Stamp, name string, data []byte, perm fs.FileMode) error {
	if err := allowed(name); err != nil {
		return fmt.Errorf("filefence: %s: %w", d.path, err)
	}
	return d.Do(ctx, s, func(root *os.Root) error {
		name := filepath.Clean(name)
		err := notOurs(root, name)
		if err == nil {
			err = replace(root, name, data, perm)
		}
		if err != nil {
			return fmt.Errorf("filefence: %s: %w", d.path, err)
		}
		return nil
	})
}

// allowed keeps names inside the directory and off the fence's own folder.
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

// notOurs keeps names off the fence's own folder that come to it by a link.
func notOurs(root *os.Root, name string) error {
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

// Advance is the operator's way past the slip rule: it moves the mark up to any
// token, never down.
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

// move takes the mark to where a rule says, under the lock.
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
	// Also a mark that stays, if nobody here knows it to be durable. It is
	// written anew: to sync what another has written may miss its errors.
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

// load reads the mark. One that is there and cannot be read is not taken for a
// first contact: that would let anybody in.
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
		// Not wrapped: the stamp is not at fault, so this must not look like a
		// refusal of it.
		return fence.Mark{}, errors.New("filefence: " + d.path + ": the mark is damaged, so nothing is written: " + err.Error())
	}
	return m, nil
}

// locked runs f while no other Dir does, in this process or another.
func (d *Dir) locked(ctx context.Context, f func() error) error {
	select {
	case d.mine <- struct{}{}:
		defer func() { <-d.mine }()
	case <-ctx.Done():
		return fmt.Errorf("filefence: %s: waiting for the lock: %w", d.path, context.Cause(ctx))
	}
	// The directory itself is locked: a file for it could be deleted, and made
	// again for a second holder.
	lock, err := d.root.Open(".")
	if err != nil {
		return fmt.Errorf("filefence: %w", err)
	}
	// Closing it gives the lock up.
	defer func() { _ = lock.Close() }()
	// Asked again and again, because a call that waits in the kernel does not
	// obey a context.
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

// sweep removes what a killed process left half written: under the lock nobody
// else is writing.
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

// replace writes a file beside, syncs it, moves it into place and syncs the
// folder: after a crash the old or the new one is there, as a whole.
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
		// After a failed sync the next one may answer "ok": nothing of it is kept.
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
