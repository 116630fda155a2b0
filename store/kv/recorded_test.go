package kv_test

import (
	"context"
	"testing"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

// failingOver is an engine with a new incarnation after every failover, as a database that
// promotes a standby.
type failingOver struct {
	kv.Driver
	id    string
	began uint64
}

func (f *failingOver) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	r, err := f.Driver.Commit(ctx, t)
	r.Incarnation = f.id
	return r, err
}

func (f *failingOver) Incarnation(ctx context.Context) (kv.Incarnation, error) {
	i, err := f.Driver.Incarnation(ctx)
	i.ID, i.Began = f.id, f.began
	return i, err
}

// A failover that lost data is noticed by a client that saw more, also if a client that saw
// less has recorded the new incarnation before. A failover that lost nothing is no loss.
func TestIncarnationRecordedByAnother(t *testing.T) {
	for name, lost := range map[string]uint64{"nothing lost": 0, "data lost": 1} {
		t.Run(name, func(t *testing.T) {
			engine := mem.NewDriver(mem.Options{Observed: true})
			t.Cleanup(engine.Close)
			d := &failingOver{Driver: engine, id: "first", began: 1}
			old := client(t, d)
			for _, name := range []string{"a", "b", "c"} {
				_, err := old.SetAttributes(t.Context(), store.Attributes{Name: name, Values: map[string]string{"k": "v"}})
				must(t, err)
			}
			before, err := old.Meta(t.Context())
			must(t, err)
			d.id, d.began = "second", before.Index-lost
			if m, err := client(t, d).Meta(t.Context()); err != nil || m.Rewound {
				t.Fatalf("a client that saw nothing before: %+v, %v", m, err)
			}
			if m, err := old.Meta(t.Context()); err != nil || m.Rewound != (lost > 0) {
				t.Errorf("a client that saw index %d, which the engine had up to %d: %+v, %v", before.Index, d.began, m, err)
			}
		})
	}
}
