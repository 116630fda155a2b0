package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// Fleet is a fleet that faults are put into. Several may be set at the same time.
type Fleet struct {
	// Event, if given before the first fault, is told what happens, in words. It may be
	// called by several goroutines.
	Event func(at clock.Instant, what string)

	path  string
	ttl   time.Duration
	raft  bool
	host  clock.Clock
	http  *http.Client
	found func(Target) // called between finding the leader and setting the fault; for tests

	mu    sync.Mutex
	seen  fence.Token // the highest that any node named
	count int         // of cuts, which are named by it
}

// How long a node may take to answer, how long to wait for somebody to lead, beside
// some TTLs, and how long healing may take.
const (
	askTime   = time.Second
	patience  = 15 * time.Second
	healTime  = 10 * time.Second
	pollEvery = 20 * time.Millisecond
)

// errSlow is why healing is given up.
var errSlow = fmt.Errorf("more than %v", healTime)

// Open reads a fleet file; an empty path is the one fleet that this user runs. A fleet
// that is not a lab's is refused.
func Open(path string) (*Fleet, error) {
	if path == "" {
		var err error
		if path, err = running(); err != nil {
			return nil, err
		}
	}
	f := &Fleet{path: path, host: clock.System(), http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	file, err := f.file()
	if err != nil {
		return nil, err
	}
	f.ttl, f.raft = time.Duration(file.TTLMS)*time.Millisecond, file.Engine.PID == 0
	return f, nil
}

// Path is that of the fleet file.
func (f *Fleet) Path() string { return f.path }

// TTL is that of the fleet's lease.
func (f *Fleet) TTL() time.Duration { return f.ttl }

// file reads the fleet file again: a node that was started again has another pid.
func (f *Fleet) file() (labapi.FleetFile, error) {
	file, err := labapi.ReadFleetFile(f.path)
	switch {
	case err != nil:
		return file, fmt.Errorf("%w: %w", ErrFleet, err)
	case !file.Lab:
		return file, fmt.Errorf("%w: the fleet of %s is not a lab's (\"lab\" is not true): it is left alone", ErrFleet, f.path)
	case len(file.Nodes) == 0:
		return file, fmt.Errorf("%w: %s names no nodes", ErrFleet, f.path)
	}
	for _, n := range file.Nodes {
		if !loopback(n.URL) {
			return file, fmt.Errorf("%w: node %s is at %q, which is not on this machine", ErrFleet, n.ID, n.URL)
		}
	}
	if file.Proxies.API != "" && !loopback(file.Proxies.API) {
		return file, fmt.Errorf("%w: the proxies are controlled at %q, which is not on this machine", ErrFleet, file.Proxies.API)
	}
	return file, nil
}

func loopback(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && u.Scheme == "http" && net.ParseIP(u.Hostname()).IsLoopback()
}

// Leader waits for a leader that works and has a token above the given one.
func (f *Fleet) Leader(ctx context.Context, above fence.Token) (Target, error) {
	bound := patience + 3*f.ttl
	whole := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("within %v", bound))
	defer cancel()
	for {
		l, answers, err := f.ask(ctx, above)
		if err != nil || l.ID != "" {
			return l, err
		}
		select {
		case <-ctx.Done():
			if errors.Is(whole.Err(), context.Canceled) {
				return Target{}, context.Cause(whole)
			}
			what := fmt.Sprintf("none of the nodes that answer (%d) leads with a token above %d", answers, above)
			if answers == 0 {
				what = "no node answers: does the fleet run?"
			}
			return Target{}, fmt.Errorf("%w: %s (%w)", ErrNoLeader, what, context.Cause(ctx))
		case <-time.After(pollEvery):
		}
	}
}

// ask asks all nodes at once; the first that leads ends it, so that one that stands
// isStopped keeps nobody waiting.
func (f *Fleet) ask(ctx context.Context, above fence.Token) (leader Target, answers int, err error) {
	file, err := f.file()
	if err != nil {
		return leader, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	type said struct {
		node   labapi.NodeFile
		status labapi.Status
		err    error
	}
	all := make(chan said, len(file.Nodes))
	for _, n := range file.Nodes {
		go func() {
			s, err := f.status(ctx, n.URL)
			all <- said{n, s, err}
		}()
	}
	for range file.Nodes { // all are waited for: they end with the context
		a := <-all
		s := a.status
		if a.err != nil {
			continue
		}
		answers++
		if s.Role != api.Leader || !s.Working || s.FenceToken <= above || s.FenceToken < f.highest() || leader.ID != "" {
			continue
		}
		if s.NodeID != a.node.ID || s.Group != file.Group || !s.Lab {
			err = fmt.Errorf("%w: at %s answers node %q of group %q (lab %v), not %s of %s: the fleet file is old", ErrFleet, a.node.URL, s.NodeID, s.Group, s.Lab, a.node.ID, file.Group)
			continue
		}
		leader = Target{ID: s.NodeID, URL: a.node.URL, PID: s.PID, Token: s.FenceToken, proxies: a.node.Proxies}
		err = nil
		cancel()
	}
	return leader, answers, err
}

// status asks one node how it is.
func (f *Fleet) status(ctx context.Context, at string) (s labapi.Status, err error) {
	err = f.call(ctx, http.MethodGet, at+"/status", nil, nil, &s)
	if err == nil {
		f.mu.Lock()
		f.seen = max(f.seen, s.FenceToken)
		f.mu.Unlock()
	}
	return s, err
}

func (f *Fleet) highest() fence.Token {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

// fleetEnded reports whether the fleet has ended: then it has taken its file along, and its
// proxies.
func (f *Fleet) fleetEnded() bool {
	_, err := os.Stat(f.path)
	return errors.Is(err, fs.ErrNotExist)
}

// deposed says who has led since, if somebody has. The target itself is asked only if
// it can answer.
func (f *Fleet) deposed(ctx context.Context, target Target, silent bool) (string, bool) {
	file, err := f.file()
	if err != nil {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, askTime/2)
	defer cancel()
	joinWords := make(chan string, len(file.Nodes))
	for _, n := range file.Nodes {
		go func() {
			word := ""
			if n.ID != target.ID || !silent {
				s, err := f.status(ctx, n.URL)
				switch {
				case err != nil:
				case s.FenceToken > target.Token:
					word = fmt.Sprintf("%s leads with token %d", s.Leader, s.FenceToken)
				case n.ID == target.ID && s.Role != api.Leader:
					word = fmt.Sprintf("%s no longer leads", n.ID)
				}
			}
			joinWords <- word
		}()
	}
	var word string
	for range file.Nodes {
		if w := <-joinWords; w != "" {
			word = w
			cancel() // one that stands still is not waited for
		}
	}
	return word, word != ""
}

func (f *Fleet) say(at clock.Instant, format string, args ...any) {
	if f.Event != nil {
		f.Event(at, fmt.Sprintf(format, args...))
	}
}

// pause waits; false: ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// cause is why ctx ended, or nil.
func cause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return errors.New("stopped")
}
