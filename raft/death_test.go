package raft

import (
	"context"
	"testing"

	"github.com/tenurehq/tenure/store"
)

// keptTerm is a Keeper that keeps what it got last.
type keptTerm struct{ got chan store.Session }

func (k *keptTerm) Keep(s store.Session, _ string) {
	select {
	case <-k.got:
	default:
	}
	k.got <- s
}

func (k *keptTerm) Forget(string) {}

// A notice of death is obeyed only if it is about the process that leads the Raft term of the
// follower. A stale one, one about another process of the leader's node and one about another node
// do nothing. A right one makes a follower lead, long before it would have lost its patience.
func TestDeathNotice(t *testing.T) {
	t.Parallel()
	ids := []string{"a", "b", "c"}
	kept := map[string]*keptTerm{}
	f := newFleet(t, func(c *Config) {
		kept[c.Candidate.ID] = &keptTerm{make(chan store.Session, 1)}
		c.Keeper = kept[c.Candidate.ID]
	}, ids...)
	f.start(ids...)
	term := f.win("a")
	a := f.nodes["a"]
	session := comes(t, "the registration of the term", kept["a"].got)
	d, err := deathOf(session.ID)
	if err != nil || d != (death{"a", a.fsm.life, a.leads().term}) {
		t.Fatalf("registered %+v, %v", d, err)
	}
	// What the keeper requires of a registration is what only the process itself knows.
	cfg := f.config("a")
	cfg.Dial = nil // it does not use the network that the test cuts
	end, err := Notices(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := end.Session(t.Context(), session.ID)
	if err != nil || s.Instance != store.InstanceDigest(a.secret) || s.Deployment != "g" {
		t.Errorf("the keeper compares with %+v, %v", s, err)
	}
	eventually(t, "the others follow it", func() bool {
		for _, id := range ids[1:] {
			if _, leader := f.nodes[id].raft.LeaderWithID(); leader != "a" || f.nodes[id].port.Life("a") != d.life {
				return false
			}
		}
		return true
	})
	right := request{Op: opDied, ID: d.node, Life: d.life, Term: d.term, Lead: true}
	for name, wrong := range map[string]func(*request){
		"an earlier Raft term":        func(r *request) { r.Term-- },
		"a later Raft term":           func(r *request) { r.Term++ },
		"no Raft term":                func(r *request) { r.Term = 0 },
		"the next process":            func(r *request) { r.Life = store.InstanceDigest("next") },
		"no process":                  func(r *request) { r.Life = "" },
		"a follower":                  func(r *request) { r.ID, r.Life = "c", f.nodes["c"].fsm.life },
		"nobody":                      func(r *request) { r.ID, r.Life = "", "" },
		"the one that gets it":        func(r *request) { r.ID, r.Life = "b", f.nodes["b"].fsm.life },
		"somebody who is no member":   func(r *request) { r.ID = "z" },
		"the leader, sent to itself":  func(r *request) { r.Op = "" },
		"the leader, only asking":     func(r *request) { r.Lead = false },
		"a process that was replaced": func(r *request) { r.Life = f.nodes["b"].fsm.life },
	} {
		to, notice := f.nodes["b"], right
		wrong(&notice)
		if notice.Op == "" {
			to = a
		}
		ctx, cancel := within(patience)
		err := to.died(ctx, notice)
		cancel()
		if err == nil && notice.Lead || to.pact.Privileged(d.term+1) || to.raft.CurrentTerm() != d.term {
			t.Errorf("%s: %v, and the node is in Raft term %d", name, err, to.raft.CurrentTerm())
		}
	}
	if err := term.Check(); err != nil {
		t.Fatalf("a notice ended the term: %v", err)
	}

	f.net.isolate("a") // as good as dead, for the others
	b, c := f.campaign("b"), f.campaign("c")
	ctx, cancel := within(patience)
	defer cancel()
	if err := end.End(ctx, session.ID, store.Died); err != nil {
		t.Fatal(err)
	}
	if !f.nodes["b"].pact.Privileged(d.term+1) && !f.nodes["c"].pact.Privileged(d.term+1) {
		t.Error("no follower took over by the notice")
	}
	select {
	case term = <-b:
	case term = <-c:
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	}
	if term.Token() != 2 {
		t.Errorf("token %d after 1", term.Token())
	}
	f.net.heal("")
}
