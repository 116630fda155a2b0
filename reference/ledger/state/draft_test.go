package state

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// If the last write of a batch fails, the state is as the earlier batches left it, also where
// the batch has changed their rows.
func TestDraftTakenBack(t *testing.T) {
	s := &State{NowMS: 1, open: map[at]int{}}
	writes := func() []api.Write {
		return []api.Write{
			{Sequence: &api.SequenceWrite{Name: "ids", N: 2}},
			{Sequence: &api.SequenceWrite{Name: "ids", N: 3}},
			{Tick: &api.TickWrite{Payload: []byte("1")}},
			{Checkpoint: &api.CheckpointWrite{Name: "c", Value: []byte("1")}},
			{Record: &api.RecordWrite{Key: "k", Value: []byte("1")}},
			{Job: &api.JobWrite{Key: "j", Schedule: "s", NextMS: 5}},
			{Fire: &api.FireWrite{Job: "j", DueMS: 5, AtMS: 5, NextMS: 6}},
			{Fire: &api.FireWrite{Job: "j", DueMS: 6, AtMS: 6, NextMS: 7}},
			{Delivered: &api.DeliveredWrite{Job: "j", AtMS: 5}},
		}
	}
	wrong := uint64(99)
	more := append(writes(), writes()...)
	for _, name := range []string{"a", "b", "c", "d"} { // the slices grow
		more = append(more, api.Write{Sequence: &api.SequenceWrite{Name: name, N: 1}}, api.Write{Tick: &api.TickWrite{Key: name}}, api.Write{Job: &api.JobWrite{Key: "j", Delete: true}})
	}
	more = append(more, api.Write{Record: &api.RecordWrite{Key: "k", Version: &wrong}})
	s.Want(api.Batch{Resource: "r", Writes: more})
	batch := func(token fence.Token, writes ...api.Write) *draft {
		stamp := fence.Stamp{Deployment: "prod", Group: "billing", Token: token}
		return &draft{State: s, batch: api.Batch{Resource: "r", Stamp: stamp, Writes: writes}}
	}
	if _, err := batch(1, writes()...).writes(); err != nil {
		t.Fatal(err)
	}
	before := State{
		NowMS: s.NowMS, resources: cloned(s.resources), sequences: cloned(s.sequences), checkpoints: cloned(s.checkpoints), records: cloned(s.records), keyed: cloned(s.keyed),
		open: maps.Clone(s.open), jobs: cloned(s.jobs), firings: cloned(s.firings), ticks: slices.Clone(s.ticks), allocations: slices.Clone(s.allocations),
	}
	for _, token := range []fence.Token{1, 2} { // the same leader, whose allocation continues, and the next one
		var version *api.VersionError
		if _, err := batch(token, more...).writes(); !errors.As(err, &version) {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(*s, before) {
			t.Errorf("token %d: the state is\n%+v\nwant\n%+v", token, *s, before)
		}
	}
}

func cloned[K key, R any](t table[K, R]) table[K, R] {
	return table[K, R]{wanted: maps.Clone(t.wanted), rows: maps.Clone(t.rows), changed: maps.Clone(t.changed)}
}
