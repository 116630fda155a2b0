package check

import (
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// feltLate is how long after its healing a fault may still be felt: a call must time out
// and the node must notice.
const feltLate = 7 * time.Second

// evidence: the history shows what the proof of each fault names. A process that was killed
// is followed by another of its node, and the node writes nothing in between; a process
// that was stopped writes nothing while it is stopped. Faults that missed, and parts without
// a class, need no proof and are not counted.
func evidence(v *verdict.Verdict, f *facts.Facts) watcher {
	c := &evidenceCheck{Verdict: v, f: f, down: map[string][]downtime{}}
	kinds := map[string]bool{}
	for _, x := range f.Faults {
		switch {
		case x.PartOf != "":
			if !slices.ContainsFunc(f.Faults, func(o history.Fault) bool {
				return o.Name == x.PartOf && o.PartOf == "" && o.Begun <= x.Healed && x.Begun <= o.Healed
			}) {
				v.Doubt(at{x.Line}, "%s of %s is said to be part of %s, and there was none at that time", x.Name, x.Target, x.PartOf)
			}
		case x.Missed != "":
			v.Add("missed")
		default:
			v.Add("faults")
			kinds[x.Name] = true
		}
		switch {
		case x.Healed == clock.Never:
			v.Doubt(at{x.Line}, "%s of %s was never healed", x.Name, x.Target)
		case x.Healed < x.Begun:
			v.Doubt(at{x.Line}, "%s of %s was healed before it began", x.Name, x.Target)
		}
		if x.Missed == "" && (x.PartOf == "" || x.Class != "") {
			c.prove(x)
		}
	}
	*v.Counter("kinds") = int64(len(kinds))
	for _, r := range f.Records {
		c.ran(r.Node, r.When, r.At)
		if r.Trouble {
			c.trouble(r.Node, r.When, r.When)
		}
	}
	return watcher{attempt: c.attempt, end: c.end}
}

type evidenceCheck struct {
	*verdict.Verdict
	f    *facts.Facts
	down map[string][]downtime // by node
	felt []*feltFault
}

// downtime is when a node certainly did not run.
type downtime struct {
	facts.Span
	fault history.Fault
}

// feltFault is a fault that must show as trouble of its nodes, or of any node if it has none.
type feltFault struct {
	history.Fault
	nodes []string
	shown bool
}

// prove looks for what the proof of a fault names.
func (c *evidenceCheck) prove(x history.Fault) {
	var nodes []string
	for id := range strings.SplitSeq(x.Target, ",") {
		if len(c.f.Processes[id]) > 0 {
			nodes = append(nodes, id)
		}
	}
	p := x.Proof
	if want := map[string]string{history.ClassKill: history.ProofExited, history.ClassPause: history.ProofStopped}[x.Class]; want != "" && p.Kind != want {
		c.Doubt(at{x.Line}, "%s of %s is of class %s and its proof is %q, not %q", x.Name, x.Target, x.Class, p.Kind, want)
		return
	}
	switch p.Kind {
	case history.ProofExited, history.ProofStopped:
		if len(p.PIDs) == 0 {
			c.Doubt(at{x.Line}, "%s of %s names no process that was hit", x.Name, x.Target)
		}
		for _, node := range nodes {
			c.hit(x, node)
		}
	case history.ProofEnded:
		if t := c.f.ByName[facts.TermName{Node: x.Target, Token: p.Token}]; t == nil || t.Ended < x.Begun || t.Ended > facts.Later(x.Healed, feltLate) {
			c.Violated(at{x.Line}, "%s of %s: its term with token %d did not end then", x.Name, x.Target, p.Token)
		}
	case history.ProofFelt:
		c.felt = append(c.felt, &feltFault{Fault: x, nodes: nodes})
	case history.ProofMeasured:
		if x.Class != "" {
			c.Violated(at{x.Line}, "%s of %s is of class %s, and the history does not show it", x.Name, x.Target, x.Class)
		}
	default:
		c.Doubt(at{x.Line}, "%s of %s has no proof (%q): the history does not show its effect", x.Name, x.Target, p.Kind)
	}
}

// hit finds the process that was hit, and when its node certainly did not run.
func (c *evidenceCheck) hit(x history.Fault, node string) {
	all := c.f.Processes[node]
	i := slices.IndexFunc(all, func(p history.Process) bool { return slices.Contains(x.Proof.PIDs, p.PID) && p.At < x.Begun })
	if i < 0 || i+1 < len(all) && all[i+1].At < x.Begun {
		c.Violated(at{x.Line}, "%s of %s: none of the processes %v ran on %s then", x.Name, x.Target, x.Proof.PIDs, node)
		return
	}
	s := facts.Span{From: facts.Later(x.Begun, settle), To: x.Healed - clock.Instant(c.f.Run.Wake())}
	if x.Set != 0 {
		s.From = facts.Later(x.Set, c.f.Run.Late())
	}
	if x.Held != 0 {
		s.To = x.Held
	}
	if x.Proof.Kind == history.ProofExited {
		if i+1 == len(all) {
			c.Violated(at{x.Line}, "%s of %s: process %d has no successor, so nothing shows that it ended", x.Name, x.Target, all[i].PID)
			return
		}
		// A process that is asked to exit works until it has ended.
		s = facts.Span{From: facts.Later(x.Healed, settle), To: all[i+1].At}
		if x.Class == history.ClassKill {
			s.From = facts.Later(x.Begun, settle)
		}
	}
	if s.From < s.To {
		c.down[node] = append(c.down[node], downtime{s, x})
	}
}

// ran is called with every sign that a node ran.
func (c *evidenceCheck) ran(node string, when clock.Instant, line history.Place) {
	for _, x := range c.down[node] {
		if x.From < when && when < x.To {
			c.Violated(at{line, x.fault.Line}, "%s writes while %s keeps it from running", node, x.fault.Name)
		}
	}
}

// trouble is called with every failure at a node.
func (c *evidenceCheck) trouble(node string, from, to clock.Instant) {
	for _, x := range c.felt {
		x.shown = x.shown || (len(x.nodes) == 0 || slices.Contains(x.nodes, node)) && from <= facts.Later(x.Healed, feltLate) && to >= x.Begun
	}
}

func (c *evidenceCheck) attempt(a history.Attempt) {
	c.Add("attempts")
	c.ran(a.Node, a.At, a.Line)
	if a.Outcome != history.OutcomeOK {
		c.trouble(a.Node, a.At, max(a.At, a.End))
	}
}

func (c *evidenceCheck) end() {
	for _, x := range c.felt {
		if !x.shown {
			c.Violated(at{x.Line}, "%s of %s: none of its keep-alives or writes failed then, and none of its terms ended", x.Name, x.Target)
		}
	}
}
