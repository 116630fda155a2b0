package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth/bearer"
)

// A line that a kill or a full disk cut short does not damage the next one, and rotation by
// another program is noticed.
func TestAuditAfterATornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("{\"at\":\"x\"}\n{\"at\":\"y"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &appendFile{path: path, most: 1 << 20, files: 2}
	for _, s := range []string{"one\n", "two\n"} {
		if err := a.append([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(path, path+".aside"); err != nil {
		t.Fatal(err)
	}
	if err := a.append([]byte("three\n")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(path, path+".again"), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.append([]byte("four\n")), a.close()); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[string]string{path + ".aside": "{\"at\":\"x\"}\n{\"at\":\"y\none\ntwo\n", path + ".again": "three\n", path: "four\n"} {
		if got, err := os.ReadFile(f); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", f, got, err)
		}
	}
}

// Every entry is one line of JSON with its values and without secrets.
func FuzzAuditLine(f *testing.F) {
	token, _ := bearer.NewCredential()
	f.Add("because\n{\"at\":1}\u2028"+token, "billing")
	f.Fuzz(func(t *testing.T, reason, group string) {
		w := &Writer{file: &appendFile{}, now: time.Now, queue: 1, wake: make(chan struct{}, 1)}
		w.Write(Entry{What: "x", Result: Done, Reason: reason, Group: group})
		b := w.held[0]
		var back Entry
		if err := json.Unmarshal(b, &back); err != nil || bytes.Count(b, []byte("\n")) != 1 || b[len(b)-1] != '\n' || back.Result != Done {
			t.Fatalf("%q: %v", b, err)
		}
		if bytes.Contains(b, []byte(token)) {
			t.Fatalf("%q", b)
		}
	})
}
