package filefence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/filefence"
)

const effectsFile = "effects"

// note makes an effect: it appends a line to a file.
func note(root *os.Root, payload string) error {
	f, err := root.OpenFile(effectsFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(payload + "\n")
	return errors.Join(err, f.Sync(), f.Close())
}

func effects(path string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(path, effectsFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), err
}

func sink() fencetest.Sink {
	return fencetest.Sink{
		Name:      "directory",
		MarkFirst: true,
		Create:    func(t testing.TB) string { return t.TempDir() },
		Open:      open,
	}
}

func open(path string) (fencetest.Resource, error) {
	d, err := filefence.Open(path)
	if err != nil {
		return fencetest.Resource{}, err
	}
	return fencetest.Resource{
		Write: func(ctx context.Context, s fence.Stamp, payload string) error {
			return d.Do(ctx, s, func(root *os.Root) error {
				fencetest.Between(ctx)
				return note(root, payload)
			})
		},
		Effects: func(context.Context) ([]string, error) { return effects(path) },
		Mark:    d.Mark,
		Seal:    d.Seal,
		Advance: d.Advance,
		Close:   d.Close,
	}, nil
}

// twin is the sink with another way of writing.
func twin(name string, write func(d *filefence.Dir, path string) func(context.Context, fence.Stamp, string) error) fencetest.Sink {
	s := sink()
	s.Name = name
	s.Open = func(path string) (fencetest.Resource, error) {
		r, err := open(path)
		if err != nil {
			return r, err
		}
		d, err := filefence.Open(path)
		if err != nil {
			return r, err
		}
		r.Write = write(d, path)
		first := r.Close
		r.Close = func() error { return errors.Join(first(), d.Close()) }
		return r, nil
	}
	return s
}

// checkApart checks the stamp before it writes, in a separate step.
func checkApart() fencetest.Sink {
	return twin("check apart", func(d *filefence.Dir, _ string) func(context.Context, fence.Stamp, string) error {
		return func(ctx context.Context, s fence.Stamp, payload string) error {
			var root *os.Root
			if err := d.Do(ctx, s, func(r *os.Root) error { root = r; return nil }); err != nil {
				return err
			}
			fencetest.Between(ctx)
			return note(root, payload)
		}
	})
}

// markLast writes before it raises the mark.
func markLast() fencetest.Sink {
	return twin("mark last", func(d *filefence.Dir, path string) func(context.Context, fence.Stamp, string) error {
		return func(ctx context.Context, s fence.Stamp, payload string) error {
			m, err := d.Mark(ctx)
			if err != nil {
				return err
			}
			if _, err := m.Admit(s); err != nil {
				return err
			}
			root, err := os.OpenRoot(path)
			if err != nil {
				return err
			}
			if err := errors.Join(note(root, payload), root.Close()); err != nil {
				return err
			}
			fencetest.Between(ctx)
			return d.Seal(ctx, s)
		}
	})
}

// noSlipRule raises the mark to any token.
func noSlipRule() fencetest.Sink {
	return twin("no slip rule", func(d *filefence.Dir, _ string) func(context.Context, fence.Stamp, string) error {
		return func(ctx context.Context, s fence.Stamp, payload string) error {
			if err := d.Advance(ctx, s); err != nil {
				return err
			}
			return d.Do(ctx, s, func(root *os.Root) error { return note(root, payload) })
		}
	})
}

// inMemory keeps the mark in the process, behind a mutex.
func inMemory() fencetest.Sink {
	s := sink()
	s.Name = "mark in memory"
	s.Open = func(path string) (fencetest.Resource, error) {
		r, err := open(path)
		if err != nil {
			return r, err
		}
		var mu sync.Mutex
		var mark fence.Mark
		r.Mark = func(context.Context) (fence.Mark, error) { return mark, nil }
		r.Seal = func(_ context.Context, s fence.Stamp) (err error) {
			mu.Lock()
			defer mu.Unlock()
			mark, err = mark.Admit(s)
			return err
		}
		r.Write = func(ctx context.Context, s fence.Stamp, payload string) (err error) {
			mu.Lock()
			defer mu.Unlock()
			if mark, err = mark.Admit(s); err != nil {
				return err
			}
			fencetest.Between(ctx)
			root, err := os.OpenRoot(path)
			if err != nil {
				return err
			}
			return errors.Join(note(root, payload), root.Close())
		}
		return r, nil
	}
	return s
}

// inProcess keeps the mark in a variable of the process, which outlives the connections.
func inProcess() fencetest.Sink {
	s := sink()
	s.Name = "mark in the process"
	marks := make(map[string]*forgetful)
	var mu sync.Mutex
	s.Open = func(path string) (fencetest.Resource, error) {
		r, err := open(path)
		if err != nil {
			return r, err
		}
		mu.Lock()
		defer mu.Unlock()
		if marks[path] == nil {
			marks[path] = new(forgetful)
		}
		of := marks[path]
		write := r.Write
		r.Mark, r.Seal = of.Mark, of.Seal
		r.Write = func(ctx context.Context, stamp fence.Stamp, payload string) error {
			if err := of.Seal(ctx, stamp); err != nil {
				return err
			}
			stamp.Token = 1 // the directory's mark is not consulted
			return write(ctx, stamp, payload)
		}
		return r, nil
	}
	return s
}

type forgetful struct {
	mu   sync.Mutex
	mark fence.Mark
}

func (f *forgetful) Mark(context.Context) (fence.Mark, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mark, nil
}

func (f *forgetful) Seal(_ context.Context, s fence.Stamp) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mark, err = f.mark.Admit(s)
	return err
}

func TestMain(m *testing.M) {
	if path := os.Getenv(writeEnv); path != "" {
		if err := writeOnce(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	fencetest.Child(sink(), checkApart(), markLast(), noSlipRule(), inMemory(), inProcess())
	os.Exit(m.Run())
}

// A guarded directory passes the tests of a sink.
func TestSink(t *testing.T) { fencetest.Run(t, sink()) }

// The suite catches typical mistakes.
func TestTwins(t *testing.T) {
	fencetest.Breaks(t, inProcess(), fencetest.MarkSurvives)
	fencetest.Breaks(t, checkApart(), fencetest.NotOvertaken)
	fencetest.Breaks(t, markLast(), fencetest.NotOvertaken, fencetest.KillBetween)
	fencetest.Breaks(t, noSlipRule(), fencetest.SlipRefused)
	fencetest.Breaks(t, inMemory(), fencetest.MarkSurvives, fencetest.Atomic)
}

func at(token fence.Token) fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "reports", Token: token}
}

func openDir(t *testing.T, path string) *filefence.Dir {
	t.Helper()
	d, err := filefence.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// A file appears as a whole under its name, and a stale leader does not replace
// it.
func TestWriteFile(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	if err := os.Mkdir(filepath.Join(path, "2026"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"total.csv", "2026/11.csv", "mark", "..hidden"} {
		if err := d.WriteFile(t.Context(), at(5), name, []byte("new"), 0o600); err != nil {
			t.Fatal(err)
		}
		var e *fence.StaleError
		if err := d.WriteFile(t.Context(), at(4), name, []byte("old"), 0o600); !errors.As(err, &e) || !strings.Contains(err.Error(), path) {
			t.Errorf("stale write of %s: %v", name, err)
		}
		if got, err := os.ReadFile(filepath.Join(path, name)); err != nil || string(got) != "new" {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
}

// No name leaves the directory or reaches the fence's own folder, even through a link.
func TestNames(t *testing.T) {
	outside := t.TempDir()
	path := t.TempDir()
	d := openDir(t, path)
	if err := os.Symlink(outside, filepath.Join(path, "link")); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"fence": ".tenure", "here": "."} {
		if err := os.Symlink(to, filepath.Join(path, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"", ".", "..", "../x", "a/../../x", filepath.Join(outside, "x"), "link/x", ".tenure/mark", "./.tenure/mark", "a/../.tenure/mark", ".Tenure/mark", "fence/mark", "here/fence/x", "here/.tenure/mark"} {
		if err := d.WriteFile(t.Context(), at(5), name, []byte("x"), 0o644); err == nil {
			t.Errorf("name %q was accepted", name)
		}
	}
	if found, err := os.ReadDir(outside); err != nil || len(found) != 0 {
		t.Errorf("outside the directory: %v, %v", found, err)
	}
	for _, name := range []string{"x", "here/y"} {
		if err := d.WriteFile(t.Context(), at(5), name, nil, 0o644); err != nil {
			t.Error(err)
		}
	}
	if m, err := d.Mark(t.Context()); err != nil || m.Token != 5 {
		t.Errorf("the mark is %+v, %v", m, err)
	}
}

// A mark of another process is stored again before it is relied on, because that process may
// have died before the sync. This happens only once.
func TestMarkMadeDurable(t *testing.T) {
	path := t.TempDir()
	mark := func() os.FileInfo {
		info, err := os.Stat(filepath.Join(path, ".tenure", "mark"))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	seal := func(d *filefence.Dir, again bool) {
		t.Helper()
		// A second link keeps the inode number from being reused.
		if err := os.Link(filepath.Join(path, ".tenure", "mark"), filepath.Join(t.TempDir(), "kept")); err != nil {
			t.Fatal(err)
		}
		before := mark()
		if err := d.Seal(t.Context(), at(5)); err != nil {
			t.Fatal(err)
		}
		if stored := !os.SameFile(before, mark()); stored != again {
			t.Errorf("stored once more: %v, want %v", stored, again)
		}
	}
	first := openDir(t, path)
	if err := first.Seal(t.Context(), at(5)); err != nil {
		t.Fatal(err)
	}
	seal(first, false)
	second := openDir(t, path)
	seal(second, true)
	seal(second, false)
	seal(first, false)

	// A deleted mark is noticed although a mark is known.
	if err := os.Remove(filepath.Join(path, ".tenure", "mark")); err != nil {
		t.Fatal(err)
	}
	if err := first.Seal(t.Context(), at(5)); err != nil {
		t.Fatal(err)
	}
	mark()
}

// The lock has one holder, whatever is deleted from the fence's folder.
func TestLockDeleted(t *testing.T) {
	path := t.TempDir()
	d, other := openDir(t, path), openDir(t, path)
	err := d.Do(t.Context(), at(5), func(root *os.Root) error {
		if err := errors.Join(root.RemoveAll(".tenure"), root.Mkdir(".tenure", 0o755)); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		err := other.Do(ctx, at(5), func(*os.Root) error {
			t.Error("two hold the lock")
			return nil
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("answered %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A mark that cannot be read is not a first contact: all writes fail.
func TestMarkUnreadable(t *testing.T) {
	for _, text := range []string{"", "{}", "{\"token\":", "null", `{"token":-1}`} {
		path := t.TempDir()
		d := openDir(t, path)
		if err := os.WriteFile(filepath.Join(path, ".tenure", "mark"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		ran := false
		err := d.Do(t.Context(), at(9), func(*os.Root) error { ran = true; return nil })
		if err == nil || errors.Is(err, fence.ErrRefused) || ran {
			t.Errorf("mark %q: %v, ran: %v", text, err, ran)
		}
	}
}

// If the mark cannot be stored, nothing is written.
func TestMarkNotStored(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	// A folder in the place of the mark cannot be replaced by a file.
	if err := os.MkdirAll(filepath.Join(path, ".tenure", "mark", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteFile(t.Context(), at(9), "x", nil, 0o644); err == nil {
		t.Error("written without a mark")
	}
	if _, err := os.Stat(filepath.Join(path, "x")); err == nil {
		t.Error("the file is there")
	}
}

// A caller that waits for the lock stops when its context ends. A job whose context has ended
// before its turn does not run.
func TestContext(t *testing.T) {
	path := t.TempDir()
	for name, other := range map[string]*filefence.Dir{"another process": openDir(t, path), "the same Dir": nil} {
		d := openDir(t, path)
		if other == nil {
			other = d
		}
		err := other.Do(t.Context(), at(5), func(*os.Root) error {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			err := d.Do(ctx, at(6), func(*os.Root) error {
				t.Errorf("%s: ran beside another", name)
				return nil
			})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// The temporary files of a killed process are removed, and nothing else.
func TestSweep(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	left := filepath.Join(path, ".tenure", "new-report.csv")
	kept := filepath.Join(path, "new-report.csv")
	for _, name := range []string{left, kept} {
		if err := os.WriteFile(name, []byte("half"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Seal(t.Context(), at(5)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	if got, err := os.ReadFile(kept); err != nil || !bytes.Equal(got, []byte("half")) {
		t.Errorf("a user's file: %q, %v", got, err)
	}
}
