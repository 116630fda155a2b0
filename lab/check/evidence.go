package check

import (
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/history"
)

// feltLate is how long after its healing a fault may still be felt: a call must time out
// and the node must notice.
const feltLate = 7 * time.Second

// evidence: the history shows what the proof of each fault names. A process that was killed
// is followed by another of its node, and the node writes nothing in between; a process
// that was stopped writes nothing while it is stopped. Faults that missed, and parts without
// a class, need no proof and are not counted.
func evidence(v *Verdict, f *facts) watcher {
	c := &evidenceCheck{Verdict: v, f: f, down: map[string][]downtime{}}
	kinds := map[string]bool{}
	for _, x := range f.faults {
		switch {
		case x.PartOf != "":
			if !slices.ContainsFunc(f.faults, func(o history.Fault) bool {
				return o.Name == x.PartOf && o.PartOf == "" && o.Begun <= x.Healed && x.Begun <= o.Healed
			}) {
				v.doubt(at{x.Line}, "%s of %s is said to be part of %s, and there was none at that time", x.Name, x.Target, x.PartOf)
			}
		case x.Missed != "":
			v.count("missed")
		default:
			v.count("faults")
			kinds[x.Name] = true
		}
		switch {
		case x.Healed == clock.Never:
			v.doubt(at{x.Line}, "%s of %s was never healed", x.Name, x.Target)
		case x.Healed < x.Begun:
			v.doubt(at{x.Line}, "%s of %s was healed before it began", x.Name, x.Target)
		}
		if x.Missed == "" && (x.PartOf == "" || x.Class != "") {
			c.prove(x)
		}
	}
	*v.counter("kinds") = int64(len(kinds))
	for _, r := range f.records {
		c.ran(r.node, r.when, r.at)
		if r.trouble {
			c.trouble(r.node, r.when, r.when)
		}
	}
	return watcher{attempt: c.attempt, end: c.end}
}

type evidenceCheck struct {
	*Verdict
	f    *facts
	down map[string][]downtime // by node
	felt []*feltFault
}

// downtime is when a node certainly did not run.
type downtime struct {
	span
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
		if len(c.f.processes[id]) > 0 {
			nodes = append(nodes, id)
		}
	}
	p := x.Proof
	if want := map[string]string{history.ClassKill: history.ProofExited, history.ClassPause: history.ProofStopped}[x.Class]; want != "" && p.Kind != want {
		c.doubt(at{x.Line}, "%s of %s is of class %s and its proof is %q, not %q", x.Name, x.Target, x.Class, p.Kind, want)
		return
	}
	switch p.Kind {
	case history.ProofExited, history.ProofStopped:
		if len(p.PIDs) == 0 {
			c.doubt(at{x.Line}, "%s of %s names no process that was hit", x.Name, x.Target)
		}
		for _, node := range nodes {
			c.hit(x, node)
		}
	case history.ProofEnded:
		if t := c.f.byName[termName{x.Target, p.Token}]; t == nil || t.ended < x.Begun || t.ended > later(x.Healed, feltLate) {
			c.violated(at{x.Line}, "%s of %s: its term with token %d did not end then", x.Name, x.Target, p.Token)
		}
	case history.ProofFelt:
		c.felt = append(c.felt, &feltFault{Fault: x, nodes: nodes})
	case history.ProofMeasured:
		if x.Class != "" {
			c.violated(at{x.Line}, "%s of %s is of class %s, and the history does not show it", x.Name, x.Target, x.Class)
		}
	default:
		c.doubt(at{x.Line}, "%s of %s has no proof (%q): the history does not show its effect", x.Name, x.Target, p.Kind)
	}
}

// hit finds the process that was hit, and when its node certainly did not run.
func (c *evidenceCheck) hit(x history.Fault, node string) {
	all := c.f.processes[node]
	i := slices.IndexFunc(all, func(p history.Process) bool { return slices.Contains(x.Proof.PIDs, p.PID) && p.At < x.Begun })
	if i < 0 || i+1 < len(all) && all[i+1].At < x.Begun {
		c.violated(at{x.Line}, "%s of %s: none of the processes %v ran on %s then", x.Name, x.Target, x.Proof.PIDs, node)
		return
	}
	s := span{later(x.Begun, settle), x.Healed - clock.Instant(c.f.run.Wake())}
	if x.Set != 0 {
		s.from = later(x.Set, c.f.run.Late())
	}
	if x.Held != 0 {
		s.to = x.Held
	}
	if x.Proof.Kind == history.ProofExited {
		if i+1 == len(all) {
			c.violated(at{x.Line}, "%s of %s: process %d has no successor, so nothing shows that it ended", x.Name, x.Target, all[i].PID)
			return
		}
		// A process that is asked to exit works until it has ended.
		s = span{later(x.Healed, settle), all[i+1].At}
		if x.Class == history.ClassKill {
			s.from = later(x.Begun, settle)
		}
	}
	if s.from < s.to {
		c.down[node] = append(c.down[node], downtime{s, x})
	}
}

// ran is called with every sign that a node ran.
func (c *evidenceCheck) ran(node string, when clock.Instant, line history.Place) {
	for _, x := range c.down[node] {
		if x.from < when && when < x.to {
			c.violated(at{line, x.fault.Line}, "%s writes while %s keeps it from running", node, x.fault.Name)
		}
	}
}

// trouble is called with every failure at a node.
func (c *evidenceCheck) trouble(node string, from, to clock.Instant) {
	for _, x := range c.felt {
		x.shown = x.shown || (len(x.nodes) == 0 || slices.Contains(x.nodes, node)) && from <= later(x.Healed, feltLate) && to >= x.Begun
	}
}

func (c *evidenceCheck) attempt(a history.Attempt) {
	c.count("attempts")
	c.ran(a.Node, a.At, a.Line)
	if a.Outcome != history.OutcomeOK {
		c.trouble(a.Node, a.At, max(a.At, a.End))
	}
}

func (c *evidenceCheck) end() {
	for _, x := range c.felt {
		if !x.shown {
			c.violated(at{x.Line}, "%s of %s: none of its keep-alives or writes failed then, and none of its terms ended", x.Name, x.Target)
		}
	}
}
