package advise

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
)

// Facts are what is known about a deployment and this machine.
type Facts struct {
	Timing  lease.Timing // of the fleet
	Engine  store.Caps
	Service bool // the engine is behind a service, and its members are not visible

	Members    []Member // of the engine
	Endpoints  int      // how many of them --store names
	RoundTrips []time.Duration

	Pause, Measured time.Duration // longest pause of this process while it was measured
	Throttled       int64         // how often the kernel throttled this control group

	Clock  Clock
	Meta   store.Meta
	Format int // record format that this program writes; 0: unknown

	Duplicates [][]store.Session // the sessions of each node id that several processes use
	Vacant     []string          // groups that were led, have no leader and should have one

	ID         string // node id of the session that was opened
	SessionErr error  // the error of opening and closing it
	Denied     bool   // SessionErr is for lack of permission
}

// Member of an engine.
type Member struct {
	Name, URL string
	Err       error // it does not answer
	Leads     bool
	Learner   bool
	Size      int64 // of its database, in bytes
	Quota     int64 // 0: unknown
	Alarms    []string
	Offset    time.Duration // of its wall clock from ours
	OffsetOK  bool          // the offset is known, to about a second
}

// Clock describes the clock of this machine.
type Clock struct {
	Boottime       bool          // leases are measured on a clock that runs while the machine is suspended
	Suspended      time.Duration // since the machine was started
	Unsynchronized bool          // nothing synchronises the wall clock
	Known          bool          // Unsynchronized is known
}

// Findings returns the result of every check.
func (f Facts) Findings() []Finding {
	var out findings
	f.quorum(&out)
	f.members(&out)
	if f.Format > 0 {
		out.add(OK, "format", "", "records have format %d, which this program reads and writes", f.Format)
	}
	f.epoch(&out)
	f.permission(&out)
	f.identity(&out)
	f.vacant(&out)
	f.roundTrip(&out)
	f.pauses(&out)
	f.clock(&out)
	return out
}

// maxVoters is the largest number of members that is worth its cost.
const maxVoters = 7

func (f Facts) quorum(out *findings) {
	if f.Service {
		out.add(OK, "quorum", "", "not checked behind a service; use --store=etcd://… to check the members of its engine")
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
		out.add(Broken, "quorum", "restart members, or follow the playbook for a lost quorum; never start a second cluster beside it",
			"%d of %d members answer, but a quorum needs %d: no leader is elected, and current leaders stop within their TTL", alive, voters, need)
	case voters == 1:
		out.add(Warning, "quorum", "use three members on three machines", "one member tolerates no failure: while it is down, no leader is elected")
	case voters == 2:
		out.add(Broken, "quorum", "add a third member on a machine of its own, or use one member",
			"both of 2 members must answer, so the failure of either stops elections: that is twice as likely as with one member")
	case voters%2 == 0:
		out.add(Warning, "quorum", fmt.Sprintf("use %d members, or %d", voters-1, voters+1),
			"%d members need %d for a quorum and tolerate %d failures, as %d do: the last member only adds a machine that can fail", voters, need, voters-need, voters-1)
	case voters > maxVoters:
		out.add(Warning, "quorum", fmt.Sprintf("use %d members, or fewer", maxVoters), "%d members: every write waits for %d disks, and more than %d tolerated failures are rarely needed", voters, need, (maxVoters-1)/2)
	default:
		out.add(OK, "quorum", "", "%d of %d members answer, a quorum needs %d: %d may fail", alive, voters, need, alive-need)
	}
	if f.Endpoints > 0 && f.Endpoints < voters {
		out.add(Warning, "endpoints", "name all members in --store", "--store names %d of %d members: if those are down, the others are not asked", f.Endpoints, voters)
	}
}

func (f Facts) members(out *findings) {
	leader := false
	reached := false
	for _, m := range f.Members {
		who := m.Name + " (" + m.URL + ")"
		if m.Err != nil {
			out.add(Warning, "member", "check its log and the network", "%s does not answer: %v", who, m.Err)
			continue
		}
		reached = true
		leader = leader || m.Leads
		if len(m.Alarms) > 0 {
			out.add(Broken, "member", "free space (compact and defragment, or a larger quota), then disarm the alarm", "%s has raised %s: it accepts no writes, so no leader is elected", who, strings.Join(m.Alarms, ", "))
		}
		if m.Quota > 0 && m.Size > m.Quota/10*8 {
			out.add(Warning, "member", "compact and defragment it, or give it a larger quota", "%s has used %d %% of its quota of %d MiB: when it is full, no leader is elected", who, 100*m.Size/m.Quota, m.Quota>>20)
		}
		const apart = 3 * time.Second
		if m.OffsetOK && m.Offset.Abs() > apart {
			out.add(Warning, "clock", "synchronise both clocks (chrony, systemd-timesyncd)", "the wall clock of %s differs from ours by %v: leases do not depend on it, but times in histories and logs cannot be compared", who, m.Offset.Round(time.Second))
		}
	}
	if reached && !leader {
		out.add(Warning, "member", "run doctor again; if this remains, the quorum is lost", "no member leads the engine's own cluster")
	}
}

func (f Facts) epoch(out *findings) {
	if f.Meta.Rewound {
		out.add(Broken, "epoch", "wait for one TTL, then run `tenure epoch raise --seen=TOKEN` with the highest token that any sink has seen",
			"the store lost data: %s. It grants nothing until the epoch is raised", cmp.Or(f.Meta.Why, "the engine is behind what it had acknowledged (it was probably restored)"))
	} else if f.Meta.Deployment != "" {
		out.add(OK, "epoch", "", "deployment %s is at epoch %d; no loss of data was detected", f.Meta.Deployment, f.Meta.Epoch)
	}
}

func (f Facts) permission(out *findings) {
	switch {
	case f.Meta.Rewound:
	case f.Denied && f.Service:
		out.add(Warning, "permission", "add a policy with the verb campaign for it, or use --id of a node that has it", "the service does not allow a session as %q: %v", f.ID, f.SessionErr)
	case f.Denied:
		out.add(Broken, "permission", "give this user read and write on the prefix of the store", "the engine does not allow writes: %v", f.SessionErr)
	case f.SessionErr != nil:
		out.add(Broken, "write", "see the findings about the engine", "cannot open and close a session: %v", f.SessionErr)
	default:
		out.add(OK, "permission", "", "opened and closed a session as %q", f.ID)
	}
}

// identity warns of node ids that several processes use.
func (f Facts) identity(out *findings) {
	const most = 5
	for _, all := range f.Duplicates[:min(len(f.Duplicates), most)] {
		var sessions []string
		var ttl time.Duration
		for _, l := range all[:min(len(all), most)] {
			sessions = append(sessions, fmt.Sprintf("%s (%s)", l.ID, cmp.Or(l.Candidate.Address, "no address")))
			ttl = max(ttl, l.TTL)
		}
		out.add(Warning, "identity", "give each process its own --id (or node_id)",
			"%d processes use the node id %s: sessions %s; or it was restarted less than %v ago, and its old session has not expired", len(all), all[0].Candidate.ID, strings.Join(sessions, ", "), ttl)
	}
	if n := len(f.Duplicates); n > most {
		out.add(Warning, "identity", "see `tenure sessions`", "several processes use each of %d more node ids", n-most)
	}
}

// vacant warns of groups that nobody leads.
func (f Facts) vacant(out *findings) {
	const most = 5
	if n := len(f.Vacant); n > 0 {
		out.add(Warning, "groups", "start a candidate; for scheduled jobs `tenure policy set GROUP --may-be-vacant`; if a group is no longer used, `tenure policy delete GROUP`",
			"%d groups that were led have no leader: %s", n, strings.Join(f.Vacant[:min(n, most)], ", "))
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
		out.add(Broken, "round trip", fmt.Sprintf("--ttl=%v or more, or a nearer or faster engine", granted(f.Engine, 4*longest*3/2)),
			"the longest round trip = %v must be less than CallTimeout = %v (a quarter of TTL = %v): calls time out before the answer arrives", round(longest), t.CallTimeout, t.TTL)
	case 3*longest >= t.CallTimeout:
		out.add(Warning, "round trip", "use a longer TTL, or a faster disk for the engine",
			"the longest round trip = %v is more than a third of CallTimeout = %v: there is no time to ask another member", round(longest), t.CallTimeout)
	default:
		out.add(OK, "round trip", "", "median %v, longest %v of %d; the timeout is %v", round(median), round(longest), len(all), t.CallTimeout)
	}
}

func (f Facts) pauses(out *findings) {
	t := f.Timing.Resolve()
	if out.rules(t.Validate(), func() string { return suggestFix(f.Timing) }) {
		return
	}
	out.engine(t, f.Engine)
	if f.Measured == 0 {
		return
	}
	g := Goals{Pause: max(f.Pause, time.Millisecond), Engine: f.Engine}
	if len(f.RoundTrips) > 0 {
		g.RoundTrip = slices.Max(f.RoundTrips)
	}
	e := f.Timing.Explain(g.assume())
	switch {
	case f.Pause > e.PauseTolerated:
		out.pause(f.Timing, e, g)
	case 2*f.Pause > e.PauseTolerated:
		out.add(Warning, "pause", "use a longer TTL, or a machine that is less busy", "this process paused for %v within %v; a leader survives %v, and longer pauses are rare but possible", round(f.Pause), f.Measured, round(e.PauseTolerated))
	default:
		out.add(OK, "pause", "", "the longest pause within %v was %v; a leader survives %v", f.Measured, round(f.Pause), round(e.PauseTolerated))
	}
	if f.Throttled > 0 {
		out.add(Warning, "throttled", "raise or remove the CPU limit of this container", "the kernel throttled this control group %d times because of its CPU limit: each time is a pause", f.Throttled)
	}
}

func (f Facts) clock(out *findings) {
	const noSuspend = "do not suspend machines that lead"
	if f.Clock.Boottime {
		out.add(OK, "clock", "", "leases are measured on a clock that also runs while the machine is suspended")
	} else {
		out.add(Warning, "clock", noSuspend, "the clock of this system may stop while the machine is suspended: after a resume a leader may believe for a moment that it still leads")
	}
	if f.Clock.Suspended > time.Second {
		out.add(Warning, "suspend", noSuspend, "this machine was suspended for %v since it was started: leaders on it lost their terms each time", f.Clock.Suspended.Round(time.Second))
	}
	if f.Clock.Known && f.Clock.Unsynchronized {
		out.add(Warning, "clock", "run chrony or systemd-timesyncd", "nothing synchronises the wall clock of this machine: leases do not depend on it, but such a clock may also run at a wrong rate")
	}
}
