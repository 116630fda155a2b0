package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/chaos/process"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// Target is a process of the fleet. Token is that of the leader's term; a named process has
// none.
type Target struct {
	ID    string      `json:"id"`
	URL   string      `json:"url"`
	PID   int         `json:"pid"`
	Token fence.Token `json:"token"`

	Proxies labapi.NodeProxies `json:"-"`
	Kind    ProcessKind        `json:"-"`
}

// ProcessKind is what a process is.
type ProcessKind int

// The kinds of processes.
const (
	IsNode ProcessKind = iota
	IsMember
	IsLedger
)

// The ids of the ledger, and of the engine if it has one member.
const (
	LedgerID  = "ledger"
	theEngine = "engine"
)

// Roles that may be named instead of a process.
const (
	Follower = "follower" // a node that does not lead
	Member   = "member"   // a member of the engine
	Quorum   = "quorum"   // so many members (with Raft: all followers) that no majority is left
)

// Processes are those of a fleet file: members of the engine, the ledger, nodes.
func Processes(file labapi.FleetFile) (all []Target) {
	for _, e := range file.Engines {
		all = append(all, Target{ID: e.ID, URL: e.URL, PID: e.PID, Kind: IsMember})
	}
	all = append(all, Target{ID: LedgerID, URL: file.Ledger.URL, PID: file.Ledger.PID, Kind: IsLedger})
	for _, n := range file.Nodes {
		all = append(all, Target{ID: n.ID, URL: n.URL, PID: n.PID, Proxies: n.Proxies})
	}
	return all
}

// others are the processes that are not nodes.
func others(file labapi.FleetFile) []Target { return Processes(file)[:len(file.Engines)+1] }

// Nodes are all nodes.
func (f *Fleet) Nodes() ([]Target, error) {
	file, err := f.File()
	if err != nil {
		return nil, err
	}
	return Processes(file)[len(file.Engines)+1:], nil
}

// Named finds processes by their ids, or those that have a role now; nth chooses among them.
func (f *Fleet) Named(ctx context.Context, what []string, nth int) (found []Target, err error) {
	what, err = f.resolveRoles(ctx, what, nth)
	if err != nil {
		return nil, err
	}
	file, err := f.File()
	if err != nil {
		return nil, err
	}
	all := Processes(file)
	if len(what) == 0 {
		return nil, fmt.Errorf("%w: no target; the processes are %s", ErrCannot, IDs(all))
	}
	for i, id := range what {
		at := slices.IndexFunc(all, func(t Target) bool { return t.ID == id })
		switch {
		case slices.Contains(what[:i], id):
			return nil, fmt.Errorf("%w: %s is named twice", ErrCannot, id)
		case at < 0 && id == theEngine && len(file.Engines) > 1:
			return nil, fmt.Errorf("%w: the engine has several members; name one of %s", ErrCannot, IDs(all[:len(file.Engines)]))
		case at < 0:
			return nil, fmt.Errorf("%w: the fleet has no %q; it has %s", ErrCannot, id, IDs(all))
		case all[at].PID == 0 || !process.Alive(all[at].PID):
			return nil, fmt.Errorf("%w: %s is not running", ErrChanged, id)
		}
		found = append(found, all[at])
	}
	return found, nil
}

// resolveRoles replaces a role by the ids of those who have it now.
func (f *Fleet) resolveRoles(ctx context.Context, what []string, nth int) ([]string, error) {
	if len(what) != 1 || !slices.Contains([]string{Follower, Member, Quorum}, what[0]) {
		return what, nil
	}
	file, err := f.File()
	if err != nil {
		return nil, err
	}
	if what[0] == Member || what[0] == Quorum && !f.Raft {
		if len(file.Engines) == 0 {
			return nil, fmt.Errorf("%w: the nodes are the engine; it has no other members", ErrCannot)
		}
		all, one := Processes(file), nth%len(file.Engines)
		if what[0] == Member || len(file.Engines) == 1 {
			return []string{all[one].ID}, nil
		}
		return strings.Split(IDs(slices.Delete(all[:len(file.Engines)], one, one+1)), ","), nil
	}
	all, err := f.Followers(ctx)
	switch {
	case err != nil:
		return nil, err
	case what[0] == Follower:
		return []string{all[nth%len(all)].ID}, nil
	case len(all) != len(file.Nodes)-1:
		return nil, fmt.Errorf("%w: of %d nodes %d follow", ErrChanged, len(file.Nodes), len(all))
	}
	return strings.Split(IDs(all), ","), nil
}

// Followers are the nodes that answer and do not lead, in the order of the fleet file.
func (f *Fleet) Followers(ctx context.Context) (all []Target, err error) {
	nodes, err := f.Nodes()
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		asked, cancel := context.WithTimeout(ctx, AskTime/2)
		s, err := f.Status(asked, n.URL)
		cancel()
		if err == nil && s.Role != api.Leader {
			n.PID = s.PID
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: no follower answers", ErrCannot)
	}
	return all, nil
}

// Handle opens a target's process. Another process may have its pid by now: a node is asked
// for its own pid, and a leader whether it still leads; other processes must have been
// started with their address as an argument.
func (f *Fleet) Handle(ctx context.Context, t Target) (*os.Process, error) {
	p, err := os.FindProcess(t.PID)
	if err != nil {
		return nil, fmt.Errorf("process of %s: %w", t.ID, err)
	}
	if t.Kind != IsNode {
		if !process.StartedFor(t.PID, t.URL) {
			err = fmt.Errorf("%w: pid %d is not %s at %s: the fleet file is outdated", ErrChanged, t.PID, t.ID, t.URL)
		}
	} else if s, serr := f.Status(ctx, t.URL); serr != nil || s.PID != t.PID || s.NodeID != t.ID {
		err = fmt.Errorf("%w: pid %d does not answer as %s", ErrChanged, t.PID, t.ID)
	} else if t.Token > 0 && (s.Role != api.Leader || s.FenceToken != t.Token) {
		err = NoLonger(t)
	}
	if err != nil {
		_ = p.Release()
		return nil, err
	}
	return p, nil
}

// NoLonger is the error for a leader that has lost its term.
func NoLonger(t Target) error {
	return fmt.Errorf("%w: %s no longer leads with token %d; nothing was set", ErrChanged, t.ID, t.Token)
}

// Allowed says what to do when a signal is not permitted.
func Allowed(t Target, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %s (pid %d) is another user's; run this as the user who runs the fleet: %w", ErrCannot, t.ID, t.PID, err)
	}
	return err
}

// IDs joins the ids of processes.
func IDs(of []Target) string {
	return join(of, ",", func(t Target) string { return t.ID })
}

// PIDWords joins the pids of processes for messages.
func PIDWords(of []Target) string {
	return join(of, ", ", func(t Target) string { return fmt.Sprint("pid ", t.PID) })
}

func join(of []Target, with string, word func(Target) string) string {
	var all []string
	for _, t := range of {
		all = append(all, word(t))
	}
	return strings.Join(all, with)
}

// PIDs are the pids of processes.
func PIDs(of []Target) (all []int) {
	for _, t := range of {
		all = append(all, t.PID)
	}
	return all
}

// AnyAlive reports whether one of the processes is alive.
func AnyAlive(of []Target) bool {
	return slices.ContainsFunc(of, func(t Target) bool { return process.Alive(t.PID) })
}
