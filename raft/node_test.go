package raft

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
)

// Three nodes elect one of them; a transfer, a resignation and a restart of all
// give larger tokens, and everybody is told the same.
func TestElects(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, "a", "b", "c")
	f.start("a", "b", "c")
	term := f.win("b")
	if err := term.Check(); err != nil {
		t.Fatal(err)
	}
	if err := term.Stamp().WithSeq(1).Validate(); err != nil {
		t.Errorf("its stamp: %v", err)
	}
	ctx, cancel := within(patience)
	defer cancel()
	for id, n := range f.nodes {
		l, err := n.Leader(ctx)
		if err != nil || l.State != tenure.Led || l.Candidate.ID != "b" || l.Candidate.Metadata["zone"] != "z-b" || l.Token != term.Token() || l.Group != "g" || l.Since.IsZero() {
			t.Errorf("%s is told: %+v, %v", id, l, err)
		}
		switch read, err := n.LeaderRead(); {
		case id != "b" && !errors.Is(err, ErrNotLeading):
			t.Errorf("%s, which does not lead, reads: %v", id, err)
		case id == "b" && (err != nil || !reflect.DeepEqual(read, l)):
			t.Errorf("the leader reads %+v, %v, and is told %+v", read, err, l)
		}
	}
	deployment := term.Stamp().Deployment
	won := f.campaign("c")
	eventually(t, "b hands over to c", func() bool { return term.TransferTo(ctx, "c") == nil })
	next := comes(t, "c leads", won)
	if next.Token() <= term.Token() {
		t.Errorf("token %d after %d", next.Token(), term.Token())
	}
	if err := term.Check(); !errors.Is(err, tenure.ErrTransferred) {
		t.Errorf("the old term: %v", err)
	}
	if err := next.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	if l, err := f.nodes["a"].Leader(ctx); err != nil || l.State != tenure.Vacant || l.Token != next.Token() || l.Reason != reasonResigned {
		t.Errorf("after the resignation: %+v, %v", l, err)
	}
	for _, id := range []string{"a", "b", "c"} {
		f.stop(id)
	}
	f.start("a", "b", "c")
	last := f.win("a")
	if last.Token() <= next.Token() {
		t.Errorf("token %d after %d, over a restart of all", last.Token(), next.Token())
	}
	if d := last.Stamp().Deployment; d != deployment {
		t.Errorf("deployment %q after %q", d, deployment)
	}
	time.Sleep(time.Second)
	if err := last.Check(); err != nil {
		t.Errorf("nothing happened: %v", err)
	}
}
