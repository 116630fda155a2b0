package etcd_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/store"
)

// A session that was closed by force leaves that as the reason of every term that it had,
// also of more than one transaction holds, for whoever reads it: before and after the next
// grant, with a store that has seen nothing of it. One that its owner closed is not said to
// have been forced.
func TestForcedReason(t *testing.T) {
	cluster := enginetest.Cluster(t, 1, enginetest.FastTicks())
	s := open(t, cluster.Endpoints())
	groups := make([]string, s.Caps().Batch+2)
	for i := range groups {
		groups[i] = fmt.Sprintf("g%02d", i)
	}
	lead := func(node string, groups ...string) store.SessionID {
		t.Helper()
		session, err := s.Open(t.Context(), tenure.Candidate{ID: node}, time.Minute, store.OpenOptions{Scope: groups})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			v, err := open(t, cluster.Endpoints()).Read(t.Context(), g)
			if err == nil {
				_, err = s.Acquire(t.Context(), session.ID, v.Record)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return session.ID
	}
	reasons := func(group string) (out []store.Reason) {
		t.Helper()
		terms, err := open(t, cluster.Endpoints()).History(t.Context(), group, store.Page{})
		if err != nil {
			t.Fatal(err)
		}
		for _, term := range terms {
			out = append(out, term.Reason)
		}
		return out
	}
	first := lead("a", groups...)
	other := lead("b", "other")
	if err := s.End(t.Context(), first, store.Forced); err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if got := reasons(g); len(got) != 1 || got[0] != store.Forced {
			t.Errorf("%s after it was closed: %v", g, got)
		}
	}
	lead("c", groups[0])
	if got := reasons(groups[0]); len(got) != 2 || got[0] != "" || got[1] != store.Forced {
		t.Errorf("after the next grant: %v", got)
	}
	if v, err := s.Read(t.Context(), "other"); err != nil || v.State != tenure.Led || v.Holder != other {
		t.Errorf("another session's group: %+v, %v", v, err)
	}
	if err := s.End(t.Context(), other, store.Closed); err != nil {
		t.Fatal(err)
	}
	if got := reasons("other"); len(got) != 1 || got[0] == store.Forced {
		t.Errorf("closed by its owner: %v", got)
	}
}
