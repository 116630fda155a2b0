package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/app/fleet/api"
	"github.com/tenurehq/tenure/clock"
)

// The names that are none of a node or of one member among several.
const (
	theLedger = "ledger"
	theEngine = "engine"
)

// kind is what a process of the fleet is.
type kind int

const (
	isNode kind = iota
	isMember
	isLedger
)

// named finds processes by their ids: nodes, members of the engine, ledger.
func (f *Fleet) named(what []string) ([]Leader, error) {
	file, err := f.file()
	if err != nil {
		return nil, err
	}
	if len(what) == 0 {
		return nil, fmt.Errorf("%w: nobody was named: %s", ErrCannot, strings.Join(ids(file), ", "))
	}
	var all []Leader
	for i, id := range what {
		l, ok := find(file, id)
		switch {
		case slices.Contains(what[:i], id):
			return nil, fmt.Errorf("%w: %s is named twice", ErrCannot, id)
		case !ok && id == theEngine && len(file.Engines) > 1:
			return nil, fmt.Errorf("%w: the engine has several members: name %s", ErrCannot, strings.Join(ids(file)[:len(file.Engines)], " or "))
		case !ok:
			return nil, fmt.Errorf("%w: the fleet has no %q: it has %s", ErrCannot, id, strings.Join(ids(file), ", "))
		case l.PID == 0 || !alive(l.PID):
			return nil, fmt.Errorf("%w: %s does not run now", ErrChanged, id)
		}
		all = append(all, l)
	}
	return all, nil
}

func ids(file api.FleetFile) (all []string) {
	for _, e := range file.Engines {
		all = append(all, e.ID)
	}
	all = append(all, theLedger)
	for _, n := range file.Nodes {
		all = append(all, n.ID)
	}
	return all
}

func find(file api.FleetFile, id string) (Leader, bool) {
	for _, n := range file.Nodes {
		if n.ID == id {
			return Leader{ID: id, URL: n.URL, PID: n.PID, proxies: n.Proxies}, true
		}
	}
	for _, e := range file.Engines {
		if e.ID == id {
			return Leader{ID: id, URL: e.URL, PID: e.PID, kind: isMember}, true
		}
	}
	if id == theLedger {
		return Leader{ID: id, URL: file.Ledger.URL, PID: file.Ledger.PID, kind: isLedger}, true
	}
	return Leader{}, false
}

// nodes are all nodes.
func (f *Fleet) nodes() ([]Leader, error) {
	file, err := f.file()
	if err != nil {
		return nil, err
	}
	return f.named(ids(file)[len(file.Engines)+1:])
}

// handle is a handle on the process that was named. The pid of the file may be
// another's by now: a node is asked for its own, the others must have been started for
// the address that they are called at.
func (f *Fleet) handle(ctx context.Context, target Leader) (*os.Process, error) {
	p, err := os.FindProcess(target.PID)
	if err != nil {
		return nil, fmt.Errorf("the process of %s: %w", target.ID, err)
	}
	if target.kind == isNode {
		s, serr := f.status(ctx, target.URL)
		if serr != nil || s.PID != target.PID || s.NodeID != target.ID {
			err = fmt.Errorf("%w: pid %d does not answer as %s", ErrChanged, target.PID, target.ID)
		}
	} else if !startedFor(target.PID, target.URL) {
		err = fmt.Errorf("%w: pid %d is not that of %s at %s: the fleet file is old", ErrChanged, target.PID, target.ID, target.URL)
	}
	if err != nil {
		_ = p.Release()
		return nil, err
	}
	return p, nil
}

// strikeNamed does the work to processes that were named, whoever leads.
func (f *Fleet) strikeNamed(ctx context.Context, name string, what []string, w func([]Leader) (work, error)) (Fault, error) {
	fault := Fault{Name: name, Target: strings.Join(what, ",")}
	targets, err := f.named(what)
	if err != nil {
		return fault, err
	}
	job, err := w(targets)
	if err != nil {
		return fault, err
	}
	job.name, job.named = name, true
	whole := targets[0]
	if len(targets) > 1 {
		whole = Leader{ID: fault.Target}
	}
	return f.run(ctx, whole, job)
}

// Kill ends processes with SIGKILL, all at once, and waits until whoever runs the fleet
// has started them again: then it is healed. It has bitten when they are gone.
func (f *Fleet) Kill(ctx context.Context, what ...string) (Fault, error) {
	return f.strikeNamed(ctx, "kill", what, func(targets []Leader) (work, error) {
		killed, back := false, ""
		started := func(ctx context.Context) error {
			again, err := f.back(ctx, targets)
			if err == nil {
				back = pids(again) + " back"
			}
			return err
		}
		return work{
			shown: Exited, pids: numbers(targets),
			set: func(ctx context.Context, _ Leader) (string, clock.Instant, error) {
				var all []*os.Process
				defer func() {
					for _, p := range all {
						_ = p.Release()
					}
				}()
				for _, t := range targets {
					p, err := f.handle(ctx, t)
					if err != nil {
						return "", 0, err
					}
					all = append(all, p)
				}
				begun := f.host.Now()
				killed = true
				var err error
				for i, p := range all {
					err = errors.Join(err, allowed(targets[i], p.Kill()))
				}
				return "killed (" + pids(targets) + ")", begun, err
			},
			hold: func(ctx context.Context, _ Leader, _ clock.Instant) error {
				if err := f.gone(ctx, targets); err != nil {
					return err
				}
				_ = started(ctx) // if it is not, it is not healed
				return nil
			},
			heal: func(ctx context.Context) error {
				if !killed || back != "" {
					return nil
				}
				return started(ctx)
			},
			healed: "runs again",
			felt: func(_ context.Context, _ Leader, healed bool) string {
				switch {
				case slices.ContainsFunc(targets, func(t Leader) bool { return alive(t.PID) }):
					return ""
				case !healed:
					return pids(targets) + " gone"
				}
				return words(pids(targets)+" gone", back)
			},
		}, nil
	})
}

func numbers(of []Leader) (all []int) {
	for _, t := range of {
		all = append(all, t.PID)
	}
	return all
}

func pids(of []Leader) string {
	var all []string
	for _, t := range of {
		all = append(all, fmt.Sprint("pid ", t.PID))
	}
	return strings.Join(all, ", ")
}

// gone waits until processes that were killed have ended.
func (f *Fleet) gone(ctx context.Context, targets []Leader) error {
	most := 5*time.Second + 2*f.ttl // one that was asked to hands over first
	for end := f.host.Now().Add(most); ; {
		i := slices.IndexFunc(targets, func(t Leader) bool { return alive(t.PID) })
		switch {
		case i < 0:
			return nil
		case f.host.Now() > end:
			return fmt.Errorf("%w: %s (pid %d) lives on", ErrNoBite, targets[i].ID, targets[i].PID)
		case !pause(ctx, look/10):
			return nil
		}
	}
}

// back waits until processes that ended have been started again.
func (f *Fleet) back(ctx context.Context, targets []Leader) ([]Leader, error) {
	const most = time.Minute
	for end := f.host.Now().Add(most); ; {
		file, err := f.file()
		if err != nil {
			return nil, err
		}
		var again []Leader
		for _, t := range targets {
			if l, ok := find(file, t.ID); ok && l.PID != t.PID && alive(l.PID) {
				again = append(again, l)
			}
		}
		switch {
		case len(again) == len(targets):
			return again, nil
		case f.host.Now() > end:
			return nil, fmt.Errorf("nobody has started it again within %v: %s", most, pids(targets))
		case !pause(ctx, look):
			return nil, fmt.Errorf("nobody has started it again: %s (%w)", pids(targets), context.Cause(ctx))
		}
	}
}

// Pause stops processes, all at once, and lets them go on. It has bitten when each was
// seen standing still. Between cannot be asked for.
func (f *Fleet) Pause(ctx context.Context, p Pause, what ...string) (Fault, error) {
	p.For = or(p.For, 2*f.ttl)
	return f.strikeNamed(ctx, "pause", what, func(targets []Leader) (work, error) {
		if p.Between {
			return work{}, fmt.Errorf("%w: only the leader stops itself between a check and a write", ErrCannot)
		}
		var stops []*stop
		seen := ""
		return work{
			shown: Stopped, pids: numbers(targets), healed: "goes on",
			set: func(ctx context.Context, _ Leader) (string, clock.Instant, error) {
				var begun clock.Instant
				for _, t := range targets {
					s := &stop{fleet: f, named: true}
					stops = append(stops, s)
					at, err := s.set(ctx, t)
					if begun == 0 {
						begun = at
					}
					if err != nil {
						return "", begun, err
					}
				}
				return fmt.Sprintf("stands still for %v (%s)", p.For, pids(targets)), begun, nil
			},
			hold: f.lasting(p.For, p.Until),
			heal: func(ctx context.Context) (err error) {
				for _, s := range stops {
					err = errors.Join(err, s.heal(ctx))
				}
				return err
			},
			felt: func(_ context.Context, _ Leader, healed bool) string {
				if !healed && len(stops) == len(targets) && !slices.ContainsFunc(targets, func(t Leader) bool { return !still(t.PID) }) {
					seen = pids(targets) + " stood still (state T)"
				}
				return seen
			},
		}, nil
	})
}
