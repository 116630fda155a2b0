package machine

import (
	"fmt"
	"testing"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

func began(id string, opened uint64, priority int, scope ...string) store.Update {
	return store.Update{Kind: store.SessionBegan, Session: store.Session{
		ID: store.SessionID(id), Candidate: tenure.Candidate{ID: id[:1], Priority: priority}, Scope: scope, Opened: opened, Successor: true,
	}}
}

// A roster knows who lives from what the watch shows, and nothing from a watch that
// another one has replaced.
func TestRosterFollowsWatch(t *testing.T) {
	var r Roster
	feed := r.Feed()
	for _, u := range []store.Update{
		began("a1", 1, 0, "*"), began("b1", 2, 5, "*"), began("c1", 3, 0, "other"), began("b2", 4, 0, "*"),
		{Kind: store.Synced}, began("d1", 5, 0, "*"), {Kind: store.SessionEnded, Session: store.Session{ID: "a1"}},
	} {
		feed(u)
	}
	check := func(what string, want int, first, newest store.SessionID) {
		t.Helper()
		if r.Len() != want {
			t.Errorf("%s: %d sessions, want %d", what, r.Len(), want)
		}
		if got, ok := r.First("g", ""); got != first || ok != (first != "") {
			t.Errorf("%s: %q is first, want %q", what, got, first)
		}
		if got, ok := r.Newest("g", "b", ""); got != newest || ok != (newest != "") {
			t.Errorf("%s: %q is the newest of b, want %q", what, got, newest)
		}
	}
	check("after a death", 4, "b1", "b2")
	if got, _ := r.First("g", "b1"); got == "b1" || got == "c1" {
		t.Errorf("%q is first without b1", got)
	}
	handle := began("b3", 7, 9, "*")
	handle.Session.Successor = false
	feed(handle)
	check("with a session that takes nothing unasked", 5, "b1", "b3")
	feed(store.Update{Kind: store.SessionEnded, Session: handle.Session})
	if got, _ := r.Newest("g", "b", "b2"); got != "b1" {
		t.Errorf("%q is the newest of b without b2", got)
	}

	next := r.Feed()
	feed(store.Update{Kind: store.SessionEnded, Session: store.Session{ID: "b1"}})
	next(began("b1", 2, 5, "*"))
	next(began("e1", 6, 0, "*"))
	check("before the next watch is complete", 5, "b1", "b2")
	next(store.Update{Kind: store.Synced})
	check("after it", 2, "b1", "b1")
}

// Whoever asks counts the candidates of the group before it, whether the roster knows
// it or not; the last holder does not count.
func TestRosterAhead(t *testing.T) {
	var r Roster
	feed := r.Feed()
	for _, u := range []store.Update{began("a1", 1, 1, "*"), began("b1", 2, 2, "g"), began("c1", 3, 3, "other"), began("d1", 4, 0, "*")} {
		feed(u)
	}
	for _, c := range []struct {
		of   store.Update
		last store.SessionID
		want int
	}{
		{began("b1", 2, 2), "", 0}, {began("a1", 1, 1), "", 1}, {began("a1", 1, 1), "b1", 0},
		{began("d1", 4, 0), "", 2}, {began("x1", 9, -1), "", 3}, {began("x1", 9, -1), "d1", 2},
	} {
		if got := r.Ahead(c.of.Session, "g", c.last); got != c.want {
			t.Errorf("%d stand before %s after %q, want %d", got, c.of.Session.ID, c.last, c.want)
		}
	}
}

// Candidates for one group stand in line by age, before those for several groups.
func TestRosterByAge(t *testing.T) {
	var r Roster
	feed := r.Feed()
	var want []store.SessionID
	for i := range 20 {
		u := began(fmt.Sprintf("a%d", i), uint64(i), 0, "g")
		want = append(want, u.Session.ID)
		feed(u)
	}
	feed(began("b1", 0, 0, "*"))
	for _, id := range want {
		if got, _ := r.First("g", ""); got != id {
			t.Fatalf("%q is first, want %q", got, id)
		}
		feed(store.Update{Kind: store.SessionEnded, Session: store.Session{ID: id}})
	}
	if got, _ := r.First("g", ""); got != "b1" {
		t.Errorf("%q is first", got)
	}
}

// Candidates for several groups come first for about the same number of groups, each group has
// one order for all of them, and the candidates that are left keep theirs when one leaves.
func TestRosterSpreads(t *testing.T) {
	var r Roster
	feed := r.Feed()
	var all []store.Session
	for i := range 4 {
		u := began(fmt.Sprintf("a%d", i), uint64(i), 0, "*")
		all = append(all, u.Session)
		feed(u)
	}
	const groups = 4000
	first := map[store.SessionID]int{}
	before := map[string]store.SessionID{}
	for i := range groups {
		g := fmt.Sprintf("shard-%d", i)
		var places [4]int
		for _, s := range all {
			ahead := r.Ahead(s, g, "")
			places[ahead]++
			if ahead == 0 {
				first[s.ID]++
				before[g] = s.ID
			}
		}
		if places != [4]int{1, 1, 1, 1} {
			t.Fatalf("%s: %v candidates stand in the places of the line", g, places)
		}
		if id, _ := r.First(g, ""); id != before[g] {
			t.Fatalf("%s: %q is first, but nobody stands before %q", g, id, before[g])
		}
	}
	for id, n := range first {
		if n < groups/4*9/10 || n > groups/4*11/10 {
			t.Errorf("%s is first for %d of %d groups", id, n, groups)
		}
	}
	feed(store.Update{Kind: store.SessionEnded, Session: all[0]})
	for g, was := range before {
		if id, _ := r.First(g, ""); was != all[0].ID && id != was {
			t.Fatalf("%s: %q was first and lives, now %q is", g, was, id)
		}
	}
}
