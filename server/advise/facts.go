package advise

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lease"
)

// Facts are what a doctor has found out about a deployment and this machine.
type Facts struct {
	// Timing is what the fleet uses, or is to use.
	Timing lease.Timing
	// Engine is what its engine adds.
	Engine Engine
	// Service: the engine is behind a service, and its members cannot be seen.
	Service bool

	// Members of the engine, and how many of them were named to us.
	Members []Member
	Named   int

	// RoundTrips of linearizable reads.
	RoundTrips []time.Duration

	// Pause is the longest stop of this process while it was Measured, Throttled how often
	// the kernel has held its control group back, ever.
	Pause, Measured time.Duration
	Throttled       int64

	Clock Clock

	Meta   lease.Meta
	Format int // that this program writes

	// Duplicates are the sessions of each node id that several processes use.
	Duplicates [][]lease.Session

	// Wrote is what became of an attempt to open a session and to close it.
	Wrote error
	// Denied: it was refused for want of permission, to As.
	Denied bool
	As     string
}

// Member of an engine.
type Member struct {
	Name, URL string
	// Err: it does not answer.
	Err      error
	Leads    bool
	Learner  bool
	Version  string
	Size     int64 // of its database, in bytes
	Quota    int64 // 0: not told
	Alarms   []string
	Offset   time.Duration // of its wall clock from ours
	OffsetOK bool          // it is known, to a second or so
}

// Clock is what is known of this machine's.
type Clock struct {
	// Boottime: it goes on while the machine is suspended.
	Boottime bool
	// Suspended is how long the machine was, since it was started.
	Suspended time.Duration
	// Unsynchronized: nothing disciplines the wall clock. Known: somebody could tell.
	Unsynchronized, Known bool
}

// Findings are what follows.
func (f Facts) Findings() []Finding {
	var out findings
	f.quorum(&out)
	f.members(&out)
	f.format(&out)
	f.epoch(&out)
	f.permission(&out)
	f.identity(&out)
	f.roundTrip(&out)
	f.pauses(&out)
	f.clock(&out)
	return out
}

func (f Facts) quorum(out *findings) {
	if f.Service {
		out.add(OK, "quorum", "", "behind a service: run doctor with --store=etcd://… to see the members of its engine")
		return
	}
	voters, alive := 0, 0
	for _, m := range f.Members {
		if m.Learner {
			continue
		}
		if voters++; m.Err == nil {
			alive++
		}
	}
	need := voters/2 + 1
	switch {
	case voters == 0:
		return
	case alive < need:
		out.add(Broken, "quorum", "bring members back, or follow the playbook for a lost quorum: never start a second cluster beside it",
			"%d of %d members answer, and %d are needed: nobody is elected, and whoever leads stops within its TTL", alive, voters, need)
	case voters == 1:
		out.add(Warning, "quorum", "three members on three machines",
			"one member tolerates no loss: while it is away nobody is elected")
	case voters == 2:
		out.add(Broken, "quorum", "a third member, on a machine of its own (or one member: two are worse)",
			"two members must both answer (a majority of 2 is 2), so either one's loss stops elections: twice as likely as with one alone")
	case voters%2 == 0:
		out.add(Warning, "quorum", fmt.Sprintf("%d members, or %d", voters-1, voters+1),
			"%d members need %d to answer and tolerate %d losses, as %d do: the last one adds a machine that can fail, and nothing else", voters, need, voters-need, voters-1)
	default:
		out.add(OK, "quorum", "", "%d of %d members answer, %d are needed: %d may be lost", alive, voters, need, alive-need)
	}
	if f.Named > 0 && f.Named < voters {
		out.add(Warning, "endpoints", "name all members in --store", "%d of %d members are named: when those are away the others are not asked", f.Named, voters)
	}
}

func (f Facts) members(out *findings) {
	leader := false
	reached := false
	for _, m := range f.Members {
		who := m.Name + " (" + m.URL + ")"
		if m.Err != nil {
			out.add(Warning, "member", "see its log, and the network between", "%s does not answer: %v", who, m.Err)
			continue
		}
		reached = true
		leader = leader || m.Leads
		if len(m.Alarms) > 0 {
			out.add(Broken, "member", "make room (compact and defragment, or a larger quota), then disarm the alarm", "%s has raised %s: it takes no writes, so nobody is elected", who, strings.Join(m.Alarms, ", "))
		}
		if m.Quota > 0 && m.Size > m.Quota/10*8 {
			out.add(Warning, "member", "compact and defragment it, or give it a larger quota", "%s has used %d %% of its quota of %d MiB: when it is full nobody is elected", who, 100*m.Size/m.Quota, m.Quota>>20)
		}
		const apart = 3 * time.Second
		if m.OffsetOK && (m.Offset > apart || m.Offset < -apart) {
			out.add(Warning, "clock", "synchronise both (chrony, systemd-timesyncd)", "the wall clock of %s is %v from ours: leases do not depend on it, but times in histories and logs cannot be compared", who, m.Offset.Round(time.Second))
		}
	}
	if reached && !leader {
		out.add(Warning, "member", "look again; if it stays so, a quorum is lost", "no member says that it leads the engine's own cluster")
	}
}

func (f Facts) format(out *findings) {
	if f.Format > 0 {
		out.add(OK, "format", "", "records are of format %d, which this program reads and writes", f.Format)
	}
}

func (f Facts) epoch(out *findings) {
	if f.Meta.Rewound {
		out.add(Broken, "epoch", "wait for one TTL, then `tenure epoch raise --seen=TOKEN`, with the highest token that any sink has seen",
			"the store lost data: %s. Nothing is granted until the epoch is raised", cmp.Or(f.Meta.Why, "the engine went back behind what it had acknowledged (it was probably restored)"))
		return
	}
	if f.Meta.Deployment != "" {
		out.add(OK, "epoch", "", "deployment %s is at epoch %d, and was not seen to have gone back", f.Meta.Deployment, f.Meta.Epoch)
	}
}

func (f Facts) permission(out *findings) {
	switch {
	case f.Meta.Rewound:
	case f.Denied && f.Service:
		out.add(Warning, "permission", "a policy with the verb campaign for it, or --id of a node that has it", "the service does not let us open a session as %q: %v", f.As, f.Wrote)
	case f.Denied:
		out.add(Broken, "permission", "read and write on the prefix of the store, for this user", "the engine does not let us write: %v", f.Wrote)
	case f.Wrote != nil:
		out.add(Broken, "write", "see what is said of the engine", "a session could not be opened and closed again: %v", f.Wrote)
	default:
		out.add(OK, "permission", "", "a session was opened and closed as %q", f.As)
	}
}

// identity warns of node ids that several processes use.
func (f Facts) identity(out *findings) {
	const most = 5
	for _, all := range f.Duplicates[:min(len(f.Duplicates), most)] {
		var sessions []string
		var ttl time.Duration
		for _, l := range all[:min(len(all), most)] {
			at := "no address"
			if l.Candidate.Address != "" {
				at = l.Candidate.Address
			}
			sessions = append(sessions, fmt.Sprintf("%s (%s)", l.ID, at))
			ttl = max(ttl, l.TTL)
		}
		times := fmt.Sprintf("%d times", len(all))
		if len(all) == 2 {
			times = "twice"
		}
		out.add(Warning, "identity", "give each process its own --id (or node_id)",
			"%s runs %s: sessions %s; or it was restarted less than %v ago, and its old session has not expired", all[0].Candidate.ID, times, strings.Join(sessions, ", "), ttl)
	}
	if n := len(f.Duplicates); n > most {
		out.add(Warning, "identity", "see `tenure sessions`", "%d more node ids are used by several processes", n-most)
	}
}

func (f Facts) roundTrip(out *findings) {
	if len(f.RoundTrips) == 0 {
		return
	}
	all := slices.Sorted(slices.Values(f.RoundTrips))
	median, longest := all[len(all)/2], all[len(all)-1]
	t := f.Timing.Resolve()
	switch {
	case longest >= t.CallTimeout:
		least := f.Engine.granted(4 * longest * 3 / 2)
		out.add(Broken, "round trip", fmt.Sprintf("--ttl=%v or more, or a nearer, faster engine", least),
			"the longest round trip = %v must be less than CallTimeout = %v (a quarter of TTL = %v): calls are given up before they are answered", tidy(longest), t.CallTimeout, t.TTL)
	case 3*longest >= t.CallTimeout:
		out.add(Warning, "round trip", "a longer TTL, or a faster disk for the engine",
			"the longest round trip = %v is more than a third of CallTimeout = %v: there is no time to ask another member", tidy(longest), t.CallTimeout)
	default:
		out.add(OK, "round trip", "", "%v at the median, %v at most, of %d; a call may take %v", tidy(median), tidy(longest), len(all), t.CallTimeout)
	}
}

func (f Facts) pauses(out *findings) {
	for _, err := range split(f.Timing.Resolve().Validate()) {
		out.add(Broken, "timing", mend(f.Timing), "%s", rule(err))
		return
	}
	if granted := f.Engine.granted(f.Timing.Resolve().TTL); granted != f.Timing.Resolve().TTL {
		out.engine(f.Timing.Resolve(), Wish{Engine: f.Engine})
	}
	if f.Measured == 0 {
		return
	}
	w := Wish{Pause: max(f.Pause, time.Millisecond), Engine: f.Engine}
	if len(f.RoundTrips) > 0 {
		w.RoundTrip = slices.Max(f.RoundTrips)
	}
	e := f.Timing.Explain(w.assume())
	switch {
	case f.Pause > e.PauseTolerated:
		out.pause(f.Timing, e, w)
	case 2*f.Pause > e.PauseTolerated:
		out.add(Warning, "pause", "a longer TTL, or a machine that is less busy", "this process stood still for %v within %v; %v are survived, and longer pauses are rare but not absent", tidy(f.Pause), f.Measured, tidy(e.PauseTolerated))
	default:
		out.add(OK, "pause", "", "the longest within %v was %v; %v are survived", f.Measured, tidy(f.Pause), tidy(e.PauseTolerated))
	}
	if f.Throttled > 0 {
		out.add(Warning, "throttled", "a larger CPU limit for this container, or none", "the kernel has held this control group back %d times for want of CPU quota: those are pauses too", f.Throttled)
	}
}

func (f Facts) clock(out *findings) {
	if !f.Clock.Boottime {
		out.add(Warning, "clock", "do not let machines that lead be suspended", "the clock of this system may stand still while the machine is suspended: a leader that wakes up believes for a moment")
	} else {
		out.add(OK, "clock", "", "trust is measured on a clock that goes on while the machine is suspended")
	}
	if f.Clock.Suspended > time.Second {
		out.add(Warning, "suspend", "do not let machines that lead be suspended", "this machine was suspended for %v since it was started: each time whoever led here lost its term", f.Clock.Suspended.Round(time.Second))
	}
	if f.Clock.Known && f.Clock.Unsynchronized {
		out.add(Warning, "clock", "run chrony or systemd-timesyncd", "nothing disciplines the wall clock of this machine: leases do not depend on it, but a clock that nobody corrects may also run at a wrong rate")
	}
}
