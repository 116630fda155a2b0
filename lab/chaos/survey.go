package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// Survey is how a fleet is: its nodes, and what faults stand.
type Survey struct {
	Path    string       `json:"path"`
	Group   string       `json:"group"`
	Backend string       `json:"backend"`
	TTLMS   int64        `json:"ttl_ms"`
	Nodes   []NodeSurvey `json:"nodes"`
	// Others are the engine's members and the ledger.
	Others []NodeSurvey `json:"others"`
}

// NodeSurvey is how a node is.
type NodeSurvey struct {
	ID  string `json:"id"`
	PID int    `json:"pid"`
	// Role is empty if the node does not answer.
	Role  api.Role    `json:"role,omitempty"`
	Token fence.Token `json:"token,omitempty"`
	// Standing are faults that are not healed: cuts, a pause, an end, a wrong clock.
	Standing []string `json:"standing,omitempty"`
}

type toxic struct {
	Name   string `json:"name"`
	Stream string `json:"stream"`
}

// Survey looks at every node.
func (f *Fleet) Survey(ctx context.Context) (Survey, error) {
	file, err := f.file()
	if err != nil {
		return Survey{}, err
	}
	out := Survey{Path: f.path, Group: file.Group, Backend: file.Backend, TTLMS: file.TTLMS, Nodes: make([]NodeSurvey, len(file.Nodes))}
	var wait sync.WaitGroup
	for i, n := range file.Nodes {
		wait.Go(func() {
			s := NodeSurvey{ID: n.ID, PID: n.PID}
			if s.Standing = notRunning(n.PID); s.Standing == nil {
				f.surveyNode(ctx, n, &s)
			}
			cuts, err := f.cuts(ctx, file, n)
			for _, c := range cuts {
				s.Standing = append(s.Standing, c.what)
			}
			if err != nil {
				s.Standing = append(s.Standing, "its proxies do not answer")
			}
			out.Nodes[i] = s
		})
	}
	wait.Wait()
	for _, o := range others(file) {
		out.Others = append(out.Others, NodeSurvey{ID: o.ID, PID: o.PID, Standing: notRunning(o.PID)})
	}
	return out, nil
}

// surveyNode asks a node how it is.
func (f *Fleet) surveyNode(ctx context.Context, n labapi.NodeFile, s *NodeSurvey) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	sent := time.Now()
	status, err := f.status(ctx, n.URL)
	if err != nil {
		return
	}
	took := time.Since(sent)
	s.PID, s.Role, s.Token = status.PID, status.Role, status.FenceToken
	const tell = 20 * time.Millisecond
	if off := time.UnixMilli(status.WallMS).Sub(sent.Add(took / 2)); off.Abs() > tell+took {
		s.Standing = append(s.Standing, fmt.Sprintf("its clock is off by %v", off.Round(time.Millisecond)))
	}
}

// notRunning says whether a process does not run.
func notRunning(pid int) []string {
	switch {
	case !alive(pid):
		return []string{"gone"}
	case isStopped(pid):
		return []string{"stands still"}
	}
	return nil
}

// others are the processes that are no nodes.
func others(file labapi.FleetFile) []Target { return processes(file)[:len(file.Engines)+1] }

// standing is something in a proxy.
type standing struct{ what, name, at string }

// cuts are those of a node, of the proxies that can be asked.
func (f *Fleet) cuts(ctx context.Context, file labapi.FleetFile, n labapi.NodeFile) (all []standing, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	proxies := map[string]string{"the ledger": n.Proxies.Ledger, "its callers": n.Proxies.Client}
	for id, proxy := range n.Proxies.Engines {
		if id == theEngine {
			id = "the engine"
		}
		proxies[id] = proxy
	}
	for peer, proxy := range n.Proxies.Peers {
		proxies[peer] = proxy
	}
	for what, proxy := range proxies {
		if proxy == "" || file.Proxies.API == "" {
			continue
		}
		at := toxics(file, proxy)
		var list []toxic
		if cerr := f.call(ctx, http.MethodGet, at, nil, nil, &list); cerr != nil {
			err = errors.Join(err, fmt.Errorf("whether %s is cut off %s cannot be seen: %w", n.ID, what, cerr))
		}
		for _, t := range list {
			all = append(all, standing{fmt.Sprintf("cut off %s, %s", what, t.Stream), t.Name, at + "/" + t.Name})
		}
	}
	slices.SortFunc(all, func(a, b standing) int { return strings.Compare(a.what, b.what) })
	return all, err
}

// Heal undoes what faults of other processes may have left: cuts that this package
// made, pauses, wrong clocks. It says what it did.
func (f *Fleet) Heal(ctx context.Context) error {
	file, err := f.file()
	if err != nil {
		return err
	}
	var all error
	for _, n := range file.Nodes {
		cuts, err := f.cuts(ctx, file, n)
		all = errors.Join(all, err)
		for _, c := range cuts {
			if !strings.HasPrefix(c.name, ours) {
				continue
			}
			err := f.remove(ctx, c.at)
			all = errors.Join(all, err)
			if err == nil {
				f.say(f.host.Now(), "healed: %s was %s", n.ID, c.what)
			}
		}
		all = errors.Join(all, f.wake(n.ID, n.Process))
		if alive(n.PID) {
			_ = f.call(ctx, http.MethodDelete, n.URL+"/lab/pause", nil, nil, nil) // a node that knows no such thing
			all = errors.Join(all, f.SetClock(ctx, n.URL, 0, 0))
		}
	}
	for _, o := range others(file) {
		all = errors.Join(all, f.wake(o.ID, labapi.Process{URL: o.URL, PID: o.PID}))
	}
	if all != nil {
		return fmt.Errorf("%w: %w", ErrNotHealed, all)
	}
	return nil
}

// wake lets a process go on that stands still, if it is still the one that it was.
func (f *Fleet) wake(id string, at labapi.Process) error {
	if !isStopped(at.PID) || !startedFor(at.PID, at.URL) {
		return nil
	}
	p, err := os.FindProcess(at.PID)
	if err == nil {
		err = resume(p)
		_ = p.Release()
	}
	if err == nil {
		f.say(f.host.Now(), "healed: %s goes on (pid %d)", id, at.PID)
	}
	return err
}
