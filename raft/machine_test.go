package raft

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"testing"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
)

func (m *machine) commit(t *testing.T, e entry) {
	t.Helper()
	raw, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	m.Apply(&hraft.Log{Data: raw, Term: 7, Index: 1})
}

// buffer is a snapshot's sink.
type buffer struct{ bytes.Buffer }

func (*buffer) Close() error  { return nil }
func (*buffer) Cancel() error { return nil }
func (*buffer) ID() string    { return "buffer" }

// Each beginning raises the token, whatever came before; the deployment is that
// of the first; a snapshot keeps it all.
func TestMachine(t *testing.T) {
	m := newMachine("life")
	var last fence.Token
	for i := range uint64(2 * maxTerms) {
		m.commit(t, entry{Kind: begin, Life: "l", Nth: i, At: int64(i), Candidate: tenure.Candidate{ID: "a", Metadata: map[string]string{"k": "v"}}, Deployment: "d" + string(rune('a'+i%26))})
		r, _ := m.state()
		if r.Token <= last || r.newest().Token != r.Token || r.Deployment != "da" {
			t.Fatalf("after %d: %+v", last, r)
		}
		last = r.Token
		m.commit(t, entry{Kind: beat})
		switch i % 3 {
		case 0:
			m.commit(t, entry{Kind: end, Token: last, Reason: reasonResigned, At: int64(i)})
		case 1:
			m.commit(t, entry{Kind: end, Token: last - 1, Reason: reasonResigned, At: int64(i)})
		case 2:
			m.commit(t, entry{Kind: raise, Epoch: i})
		}
	}
	r, _ := m.state()
	if len(r.Terms) != maxTerms {
		t.Errorf("it remembers %d terms", len(r.Terms))
	}
	if r.Terms[0].Candidate.Metadata != nil || r.newest().Candidate.Metadata == nil {
		t.Error("metadata is kept of the newest term alone")
	}
	if last.Epoch() == 0 || last.Counter() != 2*maxTerms {
		t.Errorf("the last token is %d: epoch %d, counter %d", last, last.Epoch(), last.Counter())
	}
	s, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var b buffer
	if err := s.Persist(&b); err != nil {
		t.Fatal(err)
	}
	back := newMachine("other")
	if err := back.Restore(io.NopCloser(&b)); err != nil {
		t.Fatal(err)
	}
	back.commit(t, entry{Kind: begin, At: 1})
	if r, _ := back.state(); r.Token != last+1 || r.Deployment != "da" || len(r.Terms) != maxTerms {
		t.Errorf("after a snapshot: token %d, deployment %q, %d terms", r.Token, r.Deployment, len(r.Terms))
	}
	if back.Restore(io.NopCloser(bytes.NewBufferString("{"))) == nil {
		t.Error("a torn snapshot is restored")
	}
}

// An epoch only rises, and an end that is late changes nothing.
func TestMachineRefuses(t *testing.T) {
	r, err := record{}.apply(entry{Kind: raise, Epoch: 3})
	if err != nil || r.Epoch != 3 {
		t.Fatal(err)
	}
	for _, epoch := range []uint64{0, 2, 3, fence.MaxEpoch + 1} {
		if _, err := r.apply(entry{Kind: raise, Epoch: epoch}); err == nil {
			t.Errorf("epoch %d after 3", epoch)
		}
	}
	r, _ = r.apply(entry{Kind: begin, At: 1})
	r, _ = r.apply(entry{Kind: end, Token: r.Token, Reason: "first", At: 2})
	r, _ = r.apply(entry{Kind: end, Token: r.Token, Reason: "second", At: 3})
	if r.newest().Reason != "first" || r.newest().End != 2 {
		t.Errorf("a second end rewrote the first: %+v", r.newest())
	}
}

// The proposer is told what became of its own entry, and of no other node's.
func TestMachineTellsProposer(t *testing.T) {
	m := newMachine("mine")
	nth, result := m.expect()
	m.commit(t, entry{Kind: begin, Life: "theirs", Nth: nth})
	select {
	case <-result:
		t.Fatal("told of another's entry")
	default:
	}
	m.commit(t, entry{Kind: begin, Life: "mine", Nth: nth})
	if a := <-result; a.err != nil || a.term != 7 || a.record.newest().Life != "mine" {
		t.Errorf("told %+v", a)
	}
}

// An observer is told of every term that began and every one that ended, once.
func TestSince(t *testing.T) {
	var r record
	for i := range int64(3) {
		r, _ = r.apply(entry{Kind: begin, At: 1 + i, Candidate: tenure.Candidate{ID: string(rune('a' + i))}})
		if i == 0 {
			r, _ = r.apply(entry{Kind: end, Token: r.Token, Reason: reasonResigned, At: 9})
		}
	}
	tell := func(led bool, token fence.Token, state tenure.State) (said []string) {
		for _, l := range r.since("g", led, token, state) {
			said = append(said, l.Token.String()+" "+l.State.String()+" "+l.Candidate.ID+" "+l.Reason)
		}
		return said
	}
	for _, tt := range []struct {
		led   bool
		token fence.Token
		state tenure.State
		want  []string
	}{
		{true, 0, tenure.Vacant, []string{"1 led a ", "1 vacant a resigned", "2 led b ", "2 vacant b expired", "3 led c "}},
		{true, 1, tenure.Led, []string{"1 vacant a resigned", "2 led b ", "2 vacant b expired", "3 led c "}},
		{true, 1, tenure.Vacant, []string{"2 led b ", "2 vacant b expired", "3 led c "}},
		{true, 3, tenure.Led, nil},
		{false, 3, tenure.Led, []string{"3 vacant c expired"}},
		{false, 3, tenure.Vacant, nil},
	} {
		if got := tell(tt.led, tt.token, tt.state); !slices.Equal(got, tt.want) {
			t.Errorf("led %v, after %v %d: %q, want %q", tt.led, tt.state, tt.token, got, tt.want)
		}
	}
	if got := (record{}).since("g", false, 0, tenure.Unknown); len(got) != 1 || got[0].State != tenure.Vacant {
		t.Errorf("a group that was never led: %v", got)
	}
}

// A report that data was lost stops every later term until the epoch is raised. One that
// a later term or a raised epoch has overtaken changes nothing.
func TestMachineSuspect(t *testing.T) {
	step := func(r record, e entry) record {
		t.Helper()
		r, err := r.apply(e)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := step(step(record{}, entry{Kind: begin, At: 1}), entry{Kind: begin, At: 2})
	if r = step(r, entry{Kind: suspect, Token: r.Token - 1}); r.Lost {
		t.Error("a report about an older term stops the next")
	}
	seen := r.Token + 5
	r = step(r, entry{Kind: suspect, Token: seen})
	if _, err := r.apply(entry{Kind: begin, At: 3}); !errors.Is(err, tenure.ErrDataLost) {
		t.Errorf("a term begins: %v", err)
	}
	r = step(r, entry{Kind: raise, Epoch: seen.Epoch() + 1})
	if r = step(r, entry{Kind: suspect, Token: seen}); r.Lost {
		t.Error("a late report stops the next term")
	}
	if r = step(r, entry{Kind: begin, At: 4}); r.Token <= seen {
		t.Errorf("token %d follows %d", r.Token, seen)
	}
}
