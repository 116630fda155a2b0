package feed

import (
	"slices"
	"testing"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// A tail yields all groups first and then those that changed. It resumes after a revision, and
// begins again if that is not of this feed or if a group was forgotten since. Without sight of
// the engine it yields nothing.
func TestTail(t *testing.T) {
	f := New(Config{})
	token := map[string]uint64{}
	lead := func(group string) {
		token[group]++
		v := store.View{State: tenure.Led}
		v.Group, v.Version, v.Token = group, 1+2*token[group], fence.Token(token[group])
		f.apply(v)
	}
	tail := f.Tail(0)
	take := func(tail *Tail, whole bool, want ...string) uint64 {
		t.Helper()
		views, revision, all, synced := tail.Take()
		var got []string
		for _, v := range views {
			got = append(got, v.Group)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || all != whole || !synced {
			t.Errorf("took %v, whole %v, synced %v; want %v, whole %v", got, all, synced, want, whole)
		}
		return revision
	}
	lead("a")
	if views, _, _, synced := tail.Take(); synced || len(views) > 0 {
		t.Errorf("before the snapshot it yields %v", views)
	}
	lead("b")
	f.setSynced(true, nil)
	take(tail, true, "a", "b")
	take(tail, false)
	lead("a")
	lead("a")
	before := take(tail, false, "a")
	lead("b")
	take(f.Tail(before), false, "b")
	take(f.Tail(before+100), true, "a", "b")
	f.resetMissing(map[string]bool{"a": true}) // a restore has removed b
	take(tail, false, "b")
	f.Subscribe("b").Close() // nobody needs it any more
	take(f.Tail(before), true, "a")
}
