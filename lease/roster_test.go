package lease

import (
	"testing"

	"github.com/tenurehq/tenure"
)

func began(id string, opened uint64, priority int, scope ...string) Update {
	return Update{Kind: SessionBegan, Session: Session{
		ID: SessionID(id), Candidate: tenure.Candidate{ID: id[:1], Priority: priority}, Scope: scope, Opened: opened,
	}}
}

// A roster knows who lives from what the watch shows, and nothing from a watch that
// another one has replaced.
func TestRosterFollowsWatch(t *testing.T) {
	var r Roster
	feed := r.Feed()
	for _, u := range []Update{
		began("a1", 1, 0, "*"), began("b1", 2, 5, "*"), began("c1", 3, 0, "other"), began("b2", 4, 0, "*"),
		{Kind: Synced}, began("d1", 5, 0, "*"), {Kind: SessionEnded, Session: Session{ID: "a1"}},
	} {
		feed(u)
	}
	check := func(what string, want int, first, newest SessionID) {
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
	if got, _ := r.Newest("g", "b", "b2"); got != "b1" {
		t.Errorf("%q is the newest of b without b2", got)
	}

	next := r.Feed()
	feed(Update{Kind: SessionEnded, Session: Session{ID: "b1"}})
	next(began("b1", 2, 5, "*"))
	next(began("e1", 6, 0, "*"))
	check("before the next watch is complete", 5, "b1", "b2")
	next(Update{Kind: Synced})
	check("after it", 2, "b1", "b1")
}

// Whoever asks counts the candidates of the group before it, whether the roster knows
// it or not; the last holder does not count.
func TestRosterAhead(t *testing.T) {
	var r Roster
	feed := r.Feed()
	for _, u := range []Update{began("a1", 1, 1, "*"), began("b1", 2, 2, "g"), began("c1", 3, 3, "other"), began("d1", 4, 0, "*")} {
		feed(u)
	}
	for _, c := range []struct {
		of   Update
		last SessionID
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
