package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/chaos/process"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// Fleet is a running fleet. Several goroutines may use it.
type Fleet struct {
	// TTL is that of the leader's lease. Raft: the nodes are the engine.
	TTL  time.Duration
	Raft bool

	path string
	http *http.Client

	mu   sync.Mutex
	seen fence.Token // the highest that any node named
}

// Time limits and intervals.
const (
	AskTime   = time.Second           // for a node to answer
	CallTime  = 2 * AskTime           // for a call that is answered soon
	PollEvery = 20 * time.Millisecond // between two looks at the fleet
	patience  = 15 * time.Second      // for a leader, besides some TTLs
)

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

// Open reads a fleet file. An empty path means the one fleet that this user runs. A fleet
// that is not a lab's is refused.
func Open(path string) (*Fleet, error) {
	if path == "" {
		var err error
		if path, err = runningIn(os.TempDir()); err != nil {
			return nil, err
		}
	}
	f := &Fleet{path: path, http: newClient()}
	file, err := f.File()
	if err != nil {
		return nil, err
	}
	f.TTL, f.Raft = time.Duration(file.TTLMS)*time.Millisecond, file.Engine.PID == 0
	return f, nil
}

// runningIn finds the fleet file of the one fleet that runs, in the folder where labs keep
// theirs by default.
func runningIn(dir string) (string, error) {
	pattern := filepath.Join(dir, "tenure-lab-*", "fleet.json")
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	live := slices.DeleteFunc(paths, func(path string) bool {
		info, err := os.Stat(path)
		if err != nil || !process.OwnedByUser(info) {
			return true
		}
		file, err := labapi.ReadFleetFile(path)
		return err != nil || !answers(file)
	})
	switch len(live) {
	case 1:
		return live[0], nil
	case 0:
		return "", fmt.Errorf("%w: no fleet of yours runs (none in %s); start one with `lab up`, or give its fleet file with --fleet", ErrFleet, filepath.Dir(pattern))
	}
	return "", fmt.Errorf("%w: %d fleets of yours run; choose one with --fleet: %s", ErrFleet, len(live), strings.Join(live, " or "))
}

// answers reports whether a node of the fleet answers. A lab that was killed leaves its
// file, and another program may use its ports.
func answers(file labapi.FleetFile) (found bool) {
	var nodes []labapi.NodeFile
	for _, n := range file.Nodes {
		if loopback(n.URL) && process.Alive(n.PID) {
			nodes = append(nodes, n)
			found = found || process.IsStopped(n.PID) && process.StartedFor(n.PID, n.URL) // it runs and cannot answer
		}
	}
	(&Fleet{http: newClient()}).askAll(context.Background(), nodes, AskTime, func(n labapi.NodeFile, s labapi.Status) bool {
		found = found || s.NodeID == n.ID && s.Group == file.Group
		return !found
	})
	return found
}

// Path is the path of the fleet file.
func (f *Fleet) Path() string { return f.path }

// File reads the fleet file again: a restarted process has another pid.
func (f *Fleet) File() (labapi.FleetFile, error) {
	file, err := labapi.ReadFleetFile(f.path)
	switch {
	case err != nil:
		return file, fmt.Errorf("%w: %w", ErrFleet, err)
	case !file.Lab:
		return file, fmt.Errorf("%w: the fleet of %s is not a lab's (\"lab\" is not true)", ErrFleet, f.path)
	case len(file.Nodes) == 0:
		return file, fmt.Errorf("%w: %s names no nodes", ErrFleet, f.path)
	case file.Proxies.API != "" && !loopback(file.Proxies.API):
		return file, fmt.Errorf("%w: the proxies are controlled at %q, which is not on this machine", ErrFleet, file.Proxies.API)
	}
	for _, n := range file.Nodes {
		if !loopback(n.URL) {
			return file, fmt.Errorf("%w: node %s is at %q, which is not on this machine", ErrFleet, n.ID, n.URL)
		}
	}
	return file, nil
}

func loopback(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && u.Scheme == "http" && net.ParseIP(u.Hostname()).IsLoopback()
}

// Ended reports whether the fleet has ended: then its file and proxies are gone.
func (f *Fleet) Ended() bool {
	_, err := os.Stat(f.path)
	return errors.Is(err, fs.ErrNotExist)
}

// Leader waits for a working leader with a token above the given one.
func (f *Fleet) Leader(ctx context.Context, above fence.Token) (leader Target, err error) {
	bound := patience + 3*f.TTL
	answers := 0
	Poll(ctx, bound, PollEvery, func() bool {
		leader, answers, err = f.ask(ctx, above)
		return err != nil || leader.ID != ""
	})
	switch {
	case leader.ID != "":
		return leader, nil
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return leader, context.Cause(ctx)
	case err != nil:
		return leader, err
	case answers == 0:
		return leader, fmt.Errorf("%w: no node answered within %v; is the fleet running?", ErrNoLeader, bound)
	}
	return leader, fmt.Errorf("%w: within %v none of the %d nodes that answer had a token above %d", ErrNoLeader, bound, answers, above)
}

// ask asks all nodes once.
func (f *Fleet) ask(ctx context.Context, above fence.Token) (leader Target, answers int, err error) {
	file, err := f.File()
	if err != nil {
		return leader, 0, err
	}
	f.askAll(ctx, file.Nodes, AskTime, func(n labapi.NodeFile, s labapi.Status) bool {
		answers++
		switch {
		case leader.ID != "" || s.Role != api.Leader || !s.Working || s.FenceToken <= above || s.FenceToken < f.Highest():
		case s.NodeID != n.ID || s.Group != file.Group || !s.Lab:
			err = fmt.Errorf("%w: node %q of group %q (lab %v) answers at %s instead of %s of %s: the fleet file is outdated", ErrFleet, s.NodeID, s.Group, s.Lab, n.URL, n.ID, file.Group)
		default:
			leader, err = Target{ID: s.NodeID, URL: n.URL, PID: s.PID, Token: s.FenceToken, Proxies: n.Proxies}, nil
		}
		return leader.ID == ""
	})
	return leader, answers, err
}

// askAll asks nodes for their status, all at once, and calls see with each answer, one at a
// time. When see returns false the rest is not waited for, so that a node that does not
// answer delays nobody.
func (f *Fleet) askAll(ctx context.Context, nodes []labapi.NodeFile, within time.Duration, see func(labapi.NodeFile, labapi.Status) bool) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var one sync.Mutex
	var wait sync.WaitGroup
	for _, n := range nodes {
		wait.Go(func() {
			s, err := f.Status(ctx, n.URL)
			one.Lock()
			defer one.Unlock()
			if err == nil && !see(n, s) {
				cancel()
			}
		})
	}
	wait.Wait()
}

// Status asks one node.
func (f *Fleet) Status(ctx context.Context, at string) (s labapi.Status, err error) {
	err = f.Call(ctx, CallTime, http.MethodGet, at+"/status", nil, nil, &s)
	if err == nil {
		f.mu.Lock()
		f.seen = max(f.seen, s.FenceToken)
		f.mu.Unlock()
	}
	return s, err
}

// Highest is the highest token that any node named.
func (f *Fleet) Highest() fence.Token {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

// Deposed says who has led since a target did; empty: nobody else. A silent target is not
// asked.
func (f *Fleet) Deposed(ctx context.Context, target Target, silent bool) (next string) {
	file, err := f.File()
	if err != nil {
		return ""
	}
	nodes := slices.DeleteFunc(file.Nodes, func(n labapi.NodeFile) bool { return silent && n.ID == target.ID })
	f.askAll(ctx, nodes, AskTime/2, func(n labapi.NodeFile, s labapi.Status) bool {
		switch {
		case s.FenceToken > target.Token:
			next = fmt.Sprintf("%s leads with token %d", s.Leader, s.FenceToken)
		case n.ID == target.ID && s.Role != api.Leader:
			next = n.ID + " no longer leads"
		}
		return next == ""
	})
	return next
}

// Sleep waits; false: ctx has ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Poll calls done until it returns true. It returns false when the bound has passed or ctx
// has ended.
func Poll(ctx context.Context, bound, every time.Duration, done func() bool) bool {
	for end := time.Now().Add(bound); !done(); {
		if time.Now().After(end) || !Sleep(ctx, every) {
			return false
		}
	}
	return true
}

// ClockAhead is how far the wall clock of the node at a URL is ahead of this process's, by
// the fastest of a few calls.
func (f *Fleet) ClockAhead(ctx context.Context, at string) (ahead time.Duration, err error) {
	const tries = 5
	fastest := time.Hour
	for range tries {
		sent := time.Now()
		s, err := f.Status(ctx, at)
		if err != nil {
			return 0, err
		}
		if took := time.Since(sent); took < fastest {
			fastest, ahead = took, time.UnixMilli(s.WallMS).Sub(sent.Add(took/2))
		}
	}
	return ahead, nil
}

// Restarted waits until processes that ended have been restarted.
func (f *Fleet) Restarted(ctx context.Context, targets []Target) (again []Target, err error) {
	const bound = time.Minute
	if !Poll(ctx, bound, PollEvery, func() bool {
		file, ferr := f.File()
		if err = ferr; err != nil {
			return true
		}
		again = slices.DeleteFunc(Processes(file), func(now Target) bool {
			return !process.Alive(now.PID) || !slices.ContainsFunc(targets, func(t Target) bool { return t.ID == now.ID && t.PID != now.PID })
		})
		return len(again) == len(targets)
	}) {
		err = fmt.Errorf("not restarted within %v: %s", bound, PIDWords(targets))
		if c := context.Cause(ctx); c != nil {
			err = fmt.Errorf("not restarted: %s: %w", PIDWords(targets), c)
		}
	}
	return again, err
}
