//go:build unix

package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

var errMayNot = fmt.Errorf("may not: %w", store.ErrDenied)

// strictStore refuses to write attributes.
type strictStore struct {
	store.Store
	why error
}

func (s *strictStore) SetAttributes(context.Context, store.Attributes) (store.Attributes, error) {
	return store.Attributes{}, s.why
}

// Without permission to write the record, begin and finish fail at once. After other errors
// they retry until a signal asks for an end.
func TestOnceRefused(t *testing.T) {
	store := &strictStore{Store: mem.New(mem.Options{}), why: errMayNot}
	term := won(t, store, "a")
	r := &runner{Config: &Config{Once: "k"}, signals: make(chan os.Signal, 1)}
	r.once = &once{store: store, name: "once/g/k", call: time.Second}
	if out := r.lead(t.Context(), term, nil); out.code != CodeFailed || !errors.Is(out.err, errMayNot) {
		t.Errorf("denied: %+v", out)
	}
	if out := r.notRecorded(r.once.finish(t.Context(), term)); out.code != CodeFailed || out.lost != nil || !errors.Is(out.err, errMayNot) {
		t.Errorf("denied at the end: %+v", out)
	}
	store.why = errors.New("not now")
	r.signals <- os.Interrupt
	if out := r.lead(t.Context(), term, nil); out.code != 128+2 || out.lost != nil || !errors.Is(out.err, store.why) {
		t.Errorf("interrupted: %+v", out)
	}
	ctx, stop := r.untilSignal(t.Context())
	defer stop()
	r.signals <- os.Interrupt
	if out := r.notRecorded(r.once.finish(ctx, term)); out.code != 128+2 || out.lost != nil || !errors.Is(out.err, store.why) {
		t.Errorf("interrupted at the end: %+v", out)
	}
}
