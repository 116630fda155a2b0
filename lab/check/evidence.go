package check

import (
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// evidence: the history shows what the proof of each fault names. A process that was
// killed is followed by another of its node and writes nothing in between; one that was
// stopped writes nothing meanwhile. A fault that missed and a part without a class prove
// nothing and are not counted.
type evidence struct {
	*tally
	down map[string][]downtime // by node
	felt []*feltFault
}

// downtime is a part of time in which a node surely did not run.
type downtime struct {
	faultAt
	span
}

// feltFault is a fault that is proved by trouble of its nodes, or of any node if it has
// none.
type feltFault struct {
	faultAt
	nodes []string
	shown bool
}

const (
	// settle is how long a signal may take to arrive, and an instant to be noted.
	settle = 100 * time.Millisecond
	// feltLate is how long after it was healed a fault may be felt: a call that timed out,
	// and some time to look.
	feltLate = 7 * time.Second
)

func newEvidence(f *facts) *evidence {
	c := &evidence{tally: newTally("evidence", "evidence", "faults", "kinds", "missed", "attempts"), down: map[string][]downtime{}}
	kinds := map[string]bool{}
	for _, x := range f.faults {
		switch {
		case x.PartOf != "":
			if !f.partOf(x) {
				c.doubt([]Place{x.at}, "%s of %s is said to be part of %s, and there was none at that time", x.Name, x.Target, x.PartOf)
			}
		case x.Missed != "":
			c.count("missed")
		default:
			c.count("faults")
			kinds[x.Name] = true
		}
		if x.Healed == clock.Never {
			c.doubt([]Place{x.at}, "%s of %s was never healed", x.Name, x.Target)
		}
		if x.Healed < x.Begun {
			c.doubt([]Place{x.at}, "%s of %s was healed before it began", x.Name, x.Target)
		}
		if x.Missed == "" && (x.PartOf == "" || x.Class != "") {
			c.prove(x, f)
		}
	}
	c.counts["kinds"] = int64(len(kinds))
	for _, l := range f.lives {
		c.lived(l.node, l.when, l.at)
		if l.trouble {
			c.trouble(l.node, l.when, l.when)
		}
	}
	return c
}

// partOf reports whether the fault that another is a part of is in the history.
func (f *facts) partOf(part faultAt) bool {
	for _, x := range f.faults {
		if x.Name == part.PartOf && x.PartOf == "" && x.Begun <= part.Healed && part.Begun <= x.Healed {
			return true
		}
	}
	return false
}

// prove looks for what a fault's proof names, or notes what must not be found.
func (c *evidence) prove(x faultAt, f *facts) {
	var nodes []string
	for id := range strings.SplitSeq(x.Target, ",") {
		if len(f.processes[id]) > 0 {
			nodes = append(nodes, id)
		}
	}
	p := x.Proof
	if want := map[string]string{ClassKill: ProofExited, ClassPause: ProofStopped}[x.Class]; want != "" && p.Kind != want {
		c.doubt([]Place{x.at}, "%s of %s is of class %s and its proof is %q, not %q", x.Name, x.Target, x.Class, p.Kind, want)
		return
	}
	switch p.Kind {
	case ProofExited, ProofStopped:
		if len(p.PIDs) == 0 {
			c.doubt([]Place{x.at}, "%s of %s names no process that was hit", x.Name, x.Target)
		}
		for _, node := range nodes {
			c.hit(x, node, f)
		}
	case ProofEnded:
		if t := f.byName[termName{x.Target, p.Token}]; t == nil || t.ended < x.Begun || t.ended > later(x.Healed, feltLate) {
			c.violated([]Place{x.at}, "%s of %s: its term with token %d did not end then", x.Name, x.Target, p.Token)
		}
	case ProofFelt:
		c.felt = append(c.felt, &feltFault{faultAt: x, nodes: nodes})
	case ProofMeasured:
		if x.Class != "" {
			c.violated([]Place{x.at}, "%s of %s is of class %s, and the history does not show it", x.Name, x.Target, x.Class)
		}
	default:
		c.doubt([]Place{x.at}, "%s of %s has no proof (%q): the history does not show that it bit", x.Name, x.Target, p.Kind)
	}
}

// hit looks for the process that was hit, and notes when its node surely did not run.
func (c *evidence) hit(x faultAt, node string, f *facts) {
	all := f.processes[node]
	i := slices.IndexFunc(all, func(p Process) bool { return slices.Contains(x.Proof.PIDs, p.PID) && p.At < x.Begun })
	if i < 0 || i+1 < len(all) && all[i+1].At < x.Begun {
		c.violated([]Place{x.at}, "%s of %s: none of the processes %v ran on %s then", x.Name, x.Target, x.Proof.PIDs, node)
		return
	}
	s := span{later(x.Begun, settle), x.Healed - clock.Instant(f.run.wake())}
	if x.Set != 0 {
		s.from = later(x.Set, f.run.late())
	}
	if x.Held != 0 {
		s.to = x.Held
	}
	if x.Proof.Kind == ProofExited {
		if i+1 == len(all) {
			c.violated([]Place{x.at}, "%s of %s: process %d has no successor, so nothing shows that it ended", x.Name, x.Target, all[i].PID)
			return
		}
		// One that is asked to end does something until it has.
		s = span{later(x.Healed, settle), all[i+1].At}
		if x.Class == ClassKill {
			s.from = later(x.Begun, settle)
		}
	}
	if s.from < s.to {
		c.down[node] = append(c.down[node], downtime{x, s})
	}
}

func (c *evidence) lived(node string, when clock.Instant, at Place) {
	for _, x := range c.down[node] {
		if x.from < when && when < x.to {
			c.violated([]Place{at, x.at}, "%s writes while it is down by %s", node, x.Name)
		}
	}
}

// trouble is called with what went wrong at a node.
func (c *evidence) trouble(node string, from, to clock.Instant) {
	for _, x := range c.felt {
		if !x.shown && (len(x.nodes) == 0 || slices.Contains(x.nodes, node)) && from <= later(x.Healed, feltLate) && to >= x.Begun {
			x.shown = true
		}
	}
}

func (c *evidence) attempt(a Attempt, at Place) {
	c.count("attempts")
	c.lived(a.Node, a.At, at)
	if a.Outcome != OutcomeOK {
		c.trouble(a.Node, a.At, max(a.At, a.End))
	}
}

func (c *evidence) verdict() Verdict {
	for _, x := range c.felt {
		if !x.shown {
			c.violated([]Place{x.at}, "%s of %s: no keep-alive or write of it failed then, and no term of it ended", x.Name, x.Target)
		}
	}
	return c.tally.verdict()
}
