package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/store"
)

// report has the sinks that the command of a round writes to.
type report struct {
	path string
	dir  *filefence.Dir
}

const reportFile = "report"

func newReport(t *testing.T) *report {
	t.Helper()
	r := &report{path: t.TempDir()}
	var err error
	if r.dir, err = filefence.Open(r.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.dir.Close() })
	return r
}

func (r *report) write(ctx context.Context, s fence.Stamp, text string) error {
	return r.dir.WriteFile(ctx, s, reportFile, []byte(text), 0o600)
}

// stamp is the stamp on writes of the command, during and after its term.
func (w *wrapped) stamp() fence.Stamp {
	w.promised()
	return fence.Stamp{Deployment: w.deployment, Group: w.group, Token: w.token, Session: w.session}
}

// refusedLater checks that a write with the command's token is refused after the next leader
// has sealed, with an error that names both tokens, and has no effect. It returns whether it
// was refused.
func (e *execRig) refusedLater(t *testing.T, w *wrapped, r *report) bool {
	t.Helper()
	next := e.succeed(t, w.group)
	if err := errors.Join(r.dir.Seal(t.Context(), next), r.write(t.Context(), next, "next")); err != nil {
		t.Errorf("%s: the next leader's write: %v", w.group, err)
	}
	late := w.stamp()
	err := r.write(t.Context(), late, "late")
	text, _ := os.ReadFile(filepath.Join(r.path, reportFile))
	var stale *fence.StaleError
	switch {
	case late.Token == 0 || late.Token >= next.Token || late.Deployment != next.Deployment:
		t.Errorf("%s: %v, and %v follows it", w.group, late, next)
	case !errors.As(err, &stale) || stale.Stamp.Token != late.Token || stale.Mark.Token != next.Token || string(text) != "next":
		t.Errorf("%s: a write with token %d after token %d: %v; the file says %q", w.group, late.Token, next.Token, err, text)
	case !strings.Contains(err.Error(), "token "+late.Token.String()) || !strings.Contains(err.Error(), "token "+next.Token.String()):
		t.Errorf("%s: a refusal that does not name %d and %d: %v", w.group, late.Token, next.Token, err)
	default:
		return true
	}
	return false
}

// succeed takes the group as soon as it is vacant, and returns the stamp of the next leader.
func (e *execRig) succeed(t *testing.T, group string) fence.Stamp {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), execWait)
	defer cancel()
	session, err := e.store.Open(ctx, tenure.Candidate{ID: "next"}, execWait, store.OpenOptions{Scope: store.Scope{group}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.store.End(context.WithoutCancel(ctx), session.ID, store.Closed) }()
	for ; ; time.Sleep(20 * time.Millisecond) {
		v, err := e.store.Read(ctx, group)
		if err == nil && v.State == tenure.Vacant {
			var won []store.Record
			if won, err = e.store.Acquire(ctx, session.ID, v.Record); err == nil {
				return fence.Stamp{Deployment: session.Deployment, Group: group, Token: won[0].Token}
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: nobody can follow: %v", group, err)
		}
	}
}
