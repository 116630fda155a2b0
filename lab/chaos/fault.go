package chaos

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/reference/api"
)

// Fault is a fault that was injected and healed.
type Fault struct {
	// Name is the name of its Kind.
	Name string `json:"name"`
	// Target is the id of the process, Token the term in which it was hit.
	Target string      `json:"target"`
	Token  fence.Token `json:"token"`
	// Begun is read just before the fault was set; 0 if nothing was set. Healed is read when
	// nothing of it was left; for a killed process, when its end was seen.
	Begun  clock.Instant `json:"begun"`
	Healed clock.Instant `json:"healed"`
	// The fault was certainly in effect from Set to Held. Both are 0 if it was set in part
	// only. A killed process may have been restarted before Held.
	Set  clock.Instant `json:"set,omitempty"`
	Held clock.Instant `json:"held,omitempty"`
	// Stopped is when a process stopped that was killed while it was stopped.
	Stopped clock.Instant `json:"stopped,omitempty"`
	// Evidence says in words what shows the effect.
	Evidence string `json:"evidence"`
	// Shown is how the effect shows, PIDs are the processes that were hit.
	Shown Shown `json:"shown,omitempty"`
	PIDs  []int `json:"pids,omitempty"`
}

// Shown is how the effect of a fault shows.
type Shown string

// How the effect of a fault shows.
const (
	Exited   Shown = "exited"   // the processes ended
	Stopped  Shown = "stopped"  // the processes were stopped
	Ended    Shown = "ended"    // the term ended
	Felt     Shown = "felt"     // calls or writes of the target failed, or its term ended
	Measured Shown = "measured" // only a measurement shows it
)

// Errors of Inject and Heal. Package inspect has the others.
var (
	// ErrNoEffect: the fault was set and healed, and it had no visible effect.
	ErrNoEffect = errors.New("chaos: the fault had no effect")
	// ErrNotHealed: something of the fault may be left. The error says what.
	ErrNotHealed = errors.New("chaos: NOT HEALED")
)

// From is what a process is cut off from.
type From string

// Way is the direction in which nothing passes, seen from the process: up is what it sends,
// down is what it receives.
type Way string

// What can be cut, and in which direction.
const (
	Engine From = "engine"
	Ledger From = "ledger"
	Peers  From = "peers"

	Both Way = "both"
	Up   Way = "up"
	Down Way = "down"
)

// What makes the leader change (PauseAtMoment, KillAtMoment).
const (
	ByResignation = "resignation"
	ByKill        = "kill"
)

// Spec says which fault to inject. The zero value of an option is its default. Options that
// the kind does not list in Kind.Options are ignored.
type Spec struct {
	Kind string `json:"fault,omitempty"`
	// Targets are processes by id (or a role of package inspect), hit all at once. Kinds that
	// hit the leader have none.
	Targets []string `json:"targets,omitempty"`
	Nth     int      `json:"nth,omitempty"`
	// For is how long the fault lasts. Default twice the TTL, for a flap ten times, for churn
	// a minute.
	For time.Duration `json:"for,omitempty"`
	// From is what the target is cut off from. Default the engine or, with Raft, the peers.
	// Way is the direction; default Both.
	From From `json:"from,omitempty"`
	Way  Way  `json:"way,omitempty"`
	// Offset is the error of the wall clock, PPM by how many millionths all clocks of the node
	// run faster.
	Offset time.Duration `json:"offset,omitempty"`
	PPM    int64         `json:"ppm,omitempty"`
	// Between stops the leader between a check and its write.
	Between bool `json:"between,omitempty"`
	// Sending stops the leader before it sends an order to a worker.
	Sending bool `json:"sending,omitempty"`
	// Seed decides the times of a flap. With Follow each cut hits whoever leads when it
	// begins; without it all cuts hit the same node.
	Seed   uint64 `json:"seed,omitempty"`
	Follow bool   `json:"follow,omitempty"`
	// To is the next leader of a transfer; empty: the Nth follower.
	To string `json:"to,omitempty"`
	// At is the moment (api.MomentGranted and so on) at which a node stops itself, Trigger
	// what makes the leader change.
	At      string `json:"at,omitempty"`
	Trigger string `json:"trigger,omitempty"`
	// Every is the time between two kills of a churn. Default 5s.
	Every time.Duration `json:"every,omitempty"`

	// Until is called while the fault is in effect. The fault is healed when Until has
	// returned and For has passed. Its error is returned.
	Until func(ctx context.Context, target inspect.Target) error `json:"-"`
	// Each is called with every part of the fault: each cut of a flap, each kill of a churn
	// (also one that failed), the kill that makes the leader change.
	Each func(Fault, error) `json:"-"`
}

// Kind is a row of the table of faults.
type Kind struct {
	Name string
	// What it does, for help texts.
	What string
	// Named: it hits the processes of Spec.Targets. Otherwise it hits the leader.
	Named bool
	// Options are the options of Spec that it takes, as flags of the chaos command.
	Options string
	// Shown is how its effect shows. Without an effect Inject returns ErrNoEffect.
	Shown Shown
	// Class says which guarantees of the target it affects: kill, pause or none.
	Class string
	// lasts is the default of Spec.For in TTLs; 0: twice.
	lasts time.Duration
	// prepare returns how to set, hold and heal it, and what must be seen.
	prepare func(f *Fleet, s Spec, targets []inspect.Target) (*procedure, error)
}

// The kinds of faults.
const (
	KillLeader      = "kill-leader"
	PartitionLeader = "partition-leader"
	PauseLeader     = "gc-pause-leader"
	SkewLeader      = "skew-leader"
	ResignLeader    = "resign-leader"
	TransferLeader  = "transfer-leader"
	FlapLeader      = "flap-leader"
	StopLeader      = "stop-leader"
	Kill            = "kill"
	Pause           = "pause"
	Partition       = "partition"
	DiskSync        = "disk-sync"
	DiskFull        = "disk-full"
	PauseAtMoment   = "pause-at-moment"
	KillAtMoment    = "kill-at-moment"
)

// Kinds is the table of faults.
func Kinds() []Kind {
	const kill, pause = "kill", "pause"
	return []Kind{
		{Name: KillLeader, What: "kill the leader's process", Shown: Exited, Class: kill, prepare: endProcesses(kill)},
		{Name: PartitionLeader, What: "cut the leader off the engine, the ledger or its peers", Options: "secs from way", Shown: Felt, prepare: cutOff},
		{Name: PauseLeader, What: "stop the leader's process, like a long garbage collection", Options: "ms between", Shown: Stopped, Class: pause, prepare: stopProcesses},
		{Name: SkewLeader, What: "give the leader's node a wrong clock", Options: "ms ppm secs", Shown: Measured, prepare: skewClock},
		{Name: ResignLeader, What: "ask the leader to resign", Shown: Ended, prepare: handOver},
		{Name: TransferLeader, What: "ask the leader to hand over to another node", Options: "to", Shown: Ended, prepare: handOver},
		{Name: FlapLeader, What: "cut and restore a connection of the leader for about a TTL each", Options: "from way for seed", Shown: Felt, lasts: 10, prepare: flap},
		{Name: StopLeader, What: "ask the leader's process to exit (SIGTERM); it hands over first", Shown: Exited, prepare: endProcesses("stop")},
		{Name: Kill, What: "kill members of the engine, the ledger or nodes; the fleet restarts them", Named: true, Options: "what", Shown: Exited, prepare: endProcesses(kill)},
		{Name: Pause, What: "stop and resume members of the engine, the ledger or nodes", Named: true, Options: "what ms", Shown: Stopped, prepare: stopProcesses},
		{Name: Partition, What: "cut nodes off the engine, the ledger or all other nodes, or cut engine members or the ledger off the nodes", Named: true, Options: "what secs from way", Shown: Measured, prepare: cutOff},
		{Name: DiskSync, What: "make every sync of the ledger's disk fail (needs strace)", Options: "secs", Named: true, Shown: Measured, prepare: failDisk("fsync,fdatasync", "EIO", "syncs")},
		{Name: DiskFull, What: "make every write to the ledger's disk fail with no space left (needs strace)", Options: "secs", Named: true, Shown: Measured, prepare: failDisk("pwrite64,pwritev,fallocate,ftruncate", "ENOSPC", "writes")},
		{Name: PauseAtMoment, What: "stop a node at a moment during a change of leader", Options: "at trigger ms", Shown: Stopped, Class: pause, prepare: stopAtMoment(false)},
		{Name: KillAtMoment, What: "kill a node at a moment during a change of leader", Options: "at trigger", Shown: Exited, Class: kill, prepare: stopAtMoment(true)},
	}
}

// Moments are the moments at which a node can be stopped or killed.
func Moments() []string {
	return []string{api.MomentGranted, api.MomentSealed, api.MomentResigning}
}

// KindOf returns the row of a name.
func KindOf(name string) (Kind, bool) {
	all := Kinds()
	i := slices.IndexFunc(all, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return all[i], true
}
