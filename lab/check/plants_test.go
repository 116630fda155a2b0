package check

import (
	"slices"
	"time"

	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// everything returns all planted violations.
func everything() []planted {
	return []planted{
		{"grant goes back", "G1", "token-order", verdict.Fail, "after token", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "engine", isLed))
			edit(h, "engine", i, func(g *history.Grant) { g.Token -= 2 })
			return "engine", i
		}},
		{"grant again", "G1", "token-order", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "engine", func(g history.Grant) bool { return g.State == history.Vacant }))
			v := h["engine"][i].(history.Grant)
			h.insert("engine", i+1, history.Grant{State: history.Led, Token: v.Token, At: v.At + 1})
			return "engine", i + 1
		}},
		{"token of two holders", "G1", "token-order", verdict.Fail, "belongs to", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "engine", isLed))
			g := h["engine"][i].(history.Grant)
			g.Observer, g.Holder = "another", "node-9"
			h.insert("engine", i+1, g)
			return "engine", i + 1
		}},
		{"term with an old token", "G1", "token-order", verdict.Fail, "began at", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "nodes", isBegan))
			b := h["nodes"][i].(history.Belief)
			b.Node, b.Token, b.At = "node-9", b.Token-1, b.At+1
			return "nodes", h.inTime(b)
		}},
		{"stale write in a sequence", "G2", "fence", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "ledger", isSequence))
			for h["ledger"][i].(history.Effect).Token == lastOf(h, "ledger", i).Token {
				i = pick(find(h, "ledger", isSequence))
			}
			edit(h, "ledger", i+1, func(e *history.Effect) { // the write after a new leader's first
				*e = history.Effect{What: history.EffectSequence, Name: "next", N: h["ledger"][i].(history.Effect).N + 1, Token: 1, AtMS: kWall}
			})
			return "ledger", i + 1
		}},
		{"stale write elsewhere", "G2", "fence", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "ledger", isSequence))
			e := h["ledger"][i].(history.Effect)
			h.insert("ledger", i, history.Effect{What: history.EffectCheckpoint, Name: "compaction", N: 1, Token: e.Token - 1, AtMS: e.AtMS + 5000})
			return "ledger", i
		}},
		{"stale write applied", "G2", "fence", verdict.Fail, "fencing was off", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "ledger", isRefused))
			edit(h, "ledger", i, func(e *history.Effect) { e.Applied = true })
			return "ledger", i
		}},
		{"rightful write refused", "G2", "fence", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "ledger", isRefused))
			edit(h, "ledger", i, func(e *history.Effect) { e.Current = e.Token })
			return "ledger", i
		}},
		{"zombie acknowledged", "G2", "fence", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "nodes", func(a history.Attempt) bool { return a.Outcome == history.OutcomeRefused }))
			edit(h, "nodes", i, func(a *history.Attempt) { a.Outcome = history.OutcomeOK })
			return "nodes", i
		}},
		{"write after the seal", "G2", "fence", verdict.Fail, "after a seal", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "nodes", func(s history.Seal) bool { return s.Token > 1 }))
			s := h["nodes"][i].(history.Seal)
			return "nodes", h.inTime(history.Attempt{Node: "node-9", Token: s.Token - 1, At: s.End.Add(time.Microsecond), End: s.End.Add(2 * time.Microsecond), Outcome: history.OutcomeOK})
		}},
		{"write before the seal", "G2", "fence", verdict.Fail, "before the ledger was sealed", func(h files, pick func([]int) int) (string, int) {
			s := h["nodes"][pick(find(h, "nodes", func(history.Seal) bool { return true }))].(history.Seal)
			return "nodes", h.inTime(history.Attempt{Node: s.Node, Token: s.Token, At: s.At, End: s.End, Outcome: history.OutcomeUnknown})
		}},
		{"seal not told", "G2", "fence", verdict.Unknown, "no seal", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "nodes", func(history.Seal) bool { return true }))
			token := h["nodes"][i].(history.Seal).Token
			h["nodes"] = slices.Delete(h["nodes"], i, i+1)
			return "nodes", find(h, "nodes", func(a history.Attempt) bool { return a.Token == token })[0]
		}},
		{"two believe", "G3", "one-believer", verdict.Fail, "", func(h files, _ func([]int) int) (string, int) {
			end, next := cutLeader(h)
			for i, e := range h["nodes"] {
				if b, ok := e.(history.Belief); ok && b.Token == end.Token && b.State != history.Began {
					b.At = next.At + 1
					h["nodes"][i] = b
				}
			}
			return "nodes", slices.Index(h["nodes"], history.Event(next))
		}},
		{"believes long after a pause", "G3", "one-believer", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "nodes", cause("lost")))
			lost := h["nodes"][i].(history.Belief)
			for i, e := range h["nodes"] {
				if b, ok := e.(history.Belief); ok && b.Token == lost.Token && b.State != history.Began {
					b.At = b.At.Add(time.Second)
					h["nodes"][i] = b
				}
			}
			return "nodes", find(h, "nodes", func(b history.Belief) bool { return b.State == history.Began && b.Token == lost.Token })[0]
		}},
		{"cut off and writing", "G3", "one-believer", verdict.Fail, "", func(h files, _ func([]int) int) (string, int) {
			end, next := cutLeader(h)
			return "nodes", h.inTime(history.Attempt{Node: end.Node, Token: end.Token, At: next.At.Add(time.Millisecond)})
		}},
		{"term reopened", "G4", "no-zombie", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "nodes", func(b history.Belief) bool { return b.State == history.Ended }))
			b := h["nodes"][i].(history.Belief)
			b.State, b.At = history.Began, b.At+1
			return "nodes", h.inTime(b)
		}},
		{"write after the end", "G4", "no-zombie", verdict.Fail, "", func(h files, _ func([]int) int) (string, int) {
			end, _ := cutLeader(h)
			return "nodes", h.inTime(history.Attempt{Node: end.Node, Token: end.Token, At: end.At.Add(400 * time.Millisecond)})
		}},
		{"write a moment after the end", "G4", "no-zombie", verdict.Fail, "after its term ended", func(h files, _ func([]int) int) (string, int) {
			end, _ := cutLeader(h)
			return "nodes", h.inTime(history.Attempt{Node: end.Node, Token: end.Token, At: end.At.Add(30 * time.Millisecond)})
		}},
		{"write after a refusal", "G4", "no-zombie", verdict.Fail, "was refused", func(h files, pick func([]int) int) (string, int) {
			refused := h["nodes"][pick(find(h, "nodes", func(a history.Attempt) bool { return a.Outcome == history.OutcomeRefused }))].(history.Attempt)
			return "nodes", h.inTime(history.Attempt{Node: refused.Node, Token: refused.Token, At: refused.End + 1})
		}},
		{"write after a refusal that it resigned for", "G4", "no-zombie", verdict.Fail, "was refused", func(h files, pick func([]int) int) (string, int) {
			end := h["nodes"][pick(find(h, "nodes", cause("resigned")))].(history.Belief)
			h.inTime(history.Attempt{Node: end.Node, Token: end.Token, At: end.At.Add(-3 * time.Millisecond), End: end.At.Add(-time.Millisecond), Outcome: history.OutcomeRefused})
			return "nodes", h.inTime(history.Attempt{Node: end.Node, Token: end.Token, At: end.At})
		}},
		{"write before the term", "G4", "no-zombie", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "nodes", isBegan))
			b := h["nodes"][i].(history.Belief)
			return "nodes", h.inTime(history.Attempt{Node: b.Node, Token: b.Token, At: b.At - 1000})
		}},
		{"write without a term", "G4", "no-zombie", verdict.Unknown, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "nodes", isBegan))
			b := h["nodes"][i].(history.Belief)
			return "nodes", h.inTime(history.Attempt{Node: "node-9", Token: b.Token, At: b.At + 1000})
		}},
		{"release before stop", "G5", "baton", verdict.Fail, "began to write", func(h files, pick func([]int) int) (string, int) {
			end := h["nodes"][pick(find(h, "nodes", cause("resigned")))].(history.Belief)
			return "nodes", h.inTime(history.Attempt{Node: end.Node, Token: end.Token, At: successor(h, end).At.Add(30 * time.Millisecond)})
		}},
		{"successor before the last write", "G5", "baton", verdict.Fail, "the term of", func(h files, pick func([]int) int) (string, int) {
			end := h["nodes"][pick(find(h, "nodes", cause("transferred")))].(history.Belief)
			return "nodes", h.inTime(history.Attempt{Node: end.Node, Token: end.Token, At: successor(h, end).At + 1000})
		}},
		{"number reused", "G6", "sequence", verdict.Fail, "before", plantReuse},
		{"number reused, porcupine", "G6", "linearizable", verdict.Fail, "", plantReuseNear},
		{"number out of order", "G6", "sequence", verdict.Fail, "was handed out", plantOutOfOrder},
		{"number out of order, porcupine", "G6", "linearizable", verdict.Fail, "", plantOutOfOrder},
		{"token falls", "G6", "sequence", verdict.Fail, "answered", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "calls", func(c history.Call) bool { return c.Answered() && c.Token > 2 }))
			edit(h, "calls", i, func(c *history.Call) { c.Token -= 2 })
			return "calls", i
		}},
		{"fires twice", "once", "once", verdict.Fail, "fired twice", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "ledger", isEvery))
			h.insert("ledger", i+1, h["ledger"][i])
			return "ledger", i + 1
		}},
		{"does not fire", "once", "once", verdict.Fail, "and not at", func(h files, pick func([]int) int) (string, int) {
			all := find(h, "ledger", isEvery)
			i := pick(all[:len(all)-1])
			h.remove("ledger", i)
			left := find(h, "ledger", isEvery)
			next, _ := slices.BinarySearch(left, i)
			return "ledger", left[next]
		}},
		{"does not fire at last", "once", "once", verdict.Fail, "", func(h files, _ func([]int) int) (string, int) {
			all := find(h, "ledger", isEvery)
			h.remove("ledger", all[len(all)-1])
			return "ledger", all[len(all)-2]
		}},
		{"never fires", "once", "once", verdict.Fail, "", func(h files, _ func([]int) int) (string, int) {
			h.remove("ledger", find(h, "ledger", func(e history.Effect) bool { return e.Name == "single" })[0])
			return "run", 0
		}},
		{"fires at no instant of its own", "once", "once", verdict.Fail, "does not have", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "ledger", isEvery))
			edit(h, "ledger", i, func(e *history.Effect) { e.InstantMS++ })
			return "ledger", i
		}},
		{"tick missing", "once", "once", verdict.Fail, "missing", func(h files, pick func([]int) int) (string, int) {
			all := find(h, "ledger", isTick)
			i := pick(all[1:])
			h.remove("ledger", all[slices.Index(all, i)-1])
			return "ledger", i - 1
		}},
		{"tick twice", "once", "once", verdict.Fail, "listed after", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "ledger", isTick))
			h.insert("ledger", i+1, h["ledger"][i])
			return "ledger", i + 1
		}},
		{"nobody leads any more", "G7", "recovery", verdict.Fail, "", func(h files, _ func([]int) int) (string, int) {
			end := silence(h)
			bound := h["run"][0].(history.Run).RecoveryBound()
			h["calls"] = append(h["calls"], history.Call{Start: end, End: end.Add(bound + time.Second), Error: "no_leader"})
			return "calls", len(h["calls"]) - 1
		}},
		{"nobody leads for half as long", "G7", "recovery", verdict.Fail, "the bound is 3.85s", func(h files, _ func([]int) int) (string, int) {
			end := silence(h)
			h["calls"] = append(h["calls"], history.Call{Start: end, End: end.Add(5 * time.Second), First: 1 << 40, Last: 1 << 40, Token: 1 << 20})
			return "calls", len(h["calls"]) - 1
		}},
		{"history ends too early", "G7", "recovery", verdict.Unknown, "", func(h files, _ func([]int) int) (string, int) {
			silence(h)
			return "faults", -1
		}},
		{"granted without a quorum", "G8", "refusal", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "engine", func(g history.Grant) bool { return g.State == history.Blind }))
			edit(h, "engine", i, func(g *history.Grant) {
				*g = history.Grant{State: history.Led, Token: 1000, Holder: "node-1", At: g.At}
			})
			return "engine", i
		}},
		{"vacant without a quorum", "G8", "refusal", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "engine", func(g history.Grant) bool { return g.State == history.Blind }))
			edit(h, "engine", i, func(g *history.Grant) { *g = history.Grant{State: history.Vacant, Token: 1, At: g.At} })
			return "engine", i
		}},
		{"believes without a quorum", "G8", "refusal", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			x := h["faults"][pick(find(h, "faults", fault(history.ClassQuorum)))].(history.Fault)
			i := find(h, "nodes", func(b history.Belief) bool { return b.State == history.Ended && b.At > x.Begun })[0]
			token := h["nodes"][i].(history.Belief).Token
			h.remove("nodes", i)
			h.remove("nodes", find(h, "nodes", func(b history.Belief) bool { return b.State == history.Refused && b.Token == token })[0])
			return "nodes", find(h, "nodes", func(b history.Belief) bool { return b.State == history.Began && b.Token == token })[0]
		}},
		{"believes a little longer than a TTL without a quorum", "G8", "refusal", verdict.Fail, "believes with", func(h files, pick func([]int) int) (string, int) {
			edit(h, "run", 0, func(r *history.Run) { r.EngineDelayMS = 1000 })
			x := h["faults"][pick(find(h, "faults", fault(history.ClassQuorum)))].(history.Fault)
			i := find(h, "nodes", func(b history.Belief) bool { return b.State == history.Ended && b.At > x.Begun })[0]
			token := h["nodes"][i].(history.Belief).Token
			for i, e := range h["nodes"] {
				if b, ok := e.(history.Belief); ok && b.Token == token && b.State != history.Began {
					b.At = x.Set.Add(kTTL + 200*time.Millisecond)
					h["nodes"][i] = b
				}
			}
			return "nodes", find(h, "nodes", func(b history.Belief) bool { return b.State == history.Began && b.Token == token })[0]
		}},
		{"writes without a quorum", "G8", "refusal", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			x := h["faults"][pick(find(h, "faults", fault(history.ClassQuorum)))].(history.Fault)
			return "nodes", h.inTime(history.Attempt{Node: "node-1", Token: 1, At: x.Held - 1})
		}},
		{"fault without evidence", "evidence", "evidence", verdict.Unknown, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "faults", func(f history.Fault) bool { return f.Proof.Kind != "" }))
			edit(h, "faults", i, func(f *history.Fault) { f.Proof = history.Proof{} })
			return "faults", i - 1
		}},
		{"fault not healed", "evidence", "evidence", verdict.Unknown, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "faults", func(f history.Fault) bool { return f.Healed != 0 }))
			edit(h, "faults", i, func(f *history.Fault) { f.Healed = 0 })
			return "faults", i - 1
		}},
		{"pause that did not stop it", "evidence", "evidence", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			x := h["faults"][pick(find(h, "faults", fault(history.ClassPause)))].(history.Fault)
			return "nodes", h.inTime(history.Attempt{Node: x.Target, Token: 1, At: x.Begun.Add(300 * time.Millisecond)})
		}},
		{"pause that ended early", "evidence", "evidence", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			x := h["faults"][pick(find(h, "faults", fault(history.ClassPause)))].(history.Fault)
			return "nodes", h.inTime(history.Attempt{Node: x.Target, Token: 1, At: x.Held - 1})
		}},
		{"pause that began late", "evidence", "evidence", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			x := h["faults"][pick(find(h, "faults", fault(history.ClassPause)))].(history.Fault)
			return "nodes", h.inTime(history.Attempt{Node: x.Target, Token: 1, At: x.Set.Add(30 * time.Millisecond)})
		}},
		{"part of nothing", "evidence", "evidence", verdict.Unknown, "part of", func(h files, _ func([]int) int) (string, int) {
			i := find(h, "faults", func(f history.Fault) bool { return f.PartOf != "" })[0]
			for _, j := range []int{i, i + 1} {
				edit(h, "faults", j, func(f *history.Fault) { f.PartOf = "something" })
			}
			return "faults", i
		}},
		{"stale firing", "G2", "fence", verdict.Fail, "", func(h files, pick func([]int) int) (string, int) {
			i := pick(find(h, "ledger", func(e history.Effect) bool { return isEvery(e) && e.Token > 2 }))
			edit(h, "ledger", i, func(e *history.Effect) { e.Token -= 2 })
			return "ledger", -1 // it, or the one before it
		}},
		{"two runs", "history", "history", verdict.Unknown, "", func(h files, _ func([]int) int) (string, int) {
			h.insert("run", 1, h["run"][0])
			return "run", 1
		}},
	}
}
