package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// Survey is the state of a fleet.
type Survey struct {
	Path    string       `json:"path"`
	Group   string       `json:"group"`
	Backend string       `json:"backend"`
	TTLMS   int64        `json:"ttl_ms"`
	Nodes   []NodeSurvey `json:"nodes"`
	// Others are the engine's members and the ledger.
	Others []NodeSurvey `json:"others"`
}

// NodeSurvey is the state of a process.
type NodeSurvey struct {
	ID  string `json:"id"`
	PID int    `json:"pid"`
	// Role is empty if the node does not answer.
	Role  api.Role    `json:"role,omitempty"`
	Token fence.Token `json:"token,omitempty"`
	// Standing are the faults in effect: cuts, a pause, an end, a wrong clock.
	Standing []string `json:"standing,omitempty"`
}

// Survey asks every node.
func (f *Fleet) Survey(ctx context.Context) (Survey, error) {
	file, err := f.file()
	if err != nil {
		return Survey{}, err
	}
	out := Survey{Path: f.path, Group: file.Group, Backend: file.Backend, TTLMS: file.TTLMS, Nodes: make([]NodeSurvey, len(file.Nodes))}
	var wait sync.WaitGroup
	for i, n := range file.Nodes {
		wait.Go(func() {
			s := &out.Nodes[i]
			*s = NodeSurvey{ID: n.ID, PID: n.PID, Standing: notRunning(n.PID)}
			if s.Standing == nil {
				f.surveyNode(ctx, n, s)
			}
			cuts, err := f.cuts(ctx, file, n)
			for _, c := range cuts {
				s.Standing = append(s.Standing, c.what)
			}
			if err != nil {
				s.Standing = append(s.Standing, "its proxies do not answer")
			}
		})
	}
	wait.Wait()
	for _, o := range others(file) {
		out.Others = append(out.Others, NodeSurvey{ID: o.ID, PID: o.PID, Standing: notRunning(o.PID)})
	}
	return out, nil
}

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
	const least = 20 * time.Millisecond
	if off := time.UnixMilli(status.WallMS).Sub(sent.Add(took / 2)); off.Abs() > least+took {
		s.Standing = append(s.Standing, fmt.Sprintf("its clock is off by %v", off.Round(time.Millisecond)))
	}
}

// notRunning says why a process does not run; nil: it runs.
func notRunning(pid int) []string {
	switch {
	case !alive(pid):
		return []string{"gone"}
	case isStopped(pid):
		return []string{"stopped"}
	}
	return nil
}

// toxic is something in a proxy that blocks it.
type toxic struct {
	Name   string `json:"name"`
	Stream string `json:"stream"`

	what, at string
}

// cuts are the cuts of a node, at the proxies that answer.
func (f *Fleet) cuts(ctx context.Context, file labapi.FleetFile, n labapi.NodeFile) (all []toxic, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	proxies := map[string]string{"the ledger": n.Proxies.Ledger, "its callers": n.Proxies.Client}
	maps.Copy(proxies, n.Proxies.Engines)
	maps.Copy(proxies, n.Proxies.Peers)
	for from, proxy := range proxies {
		if proxy == "" || file.Proxies.API == "" {
			continue
		}
		if from == theEngine {
			from = "the engine"
		}
		var list []toxic
		if cerr := f.call(ctx, http.MethodGet, toxics(file, proxy), nil, nil, &list); cerr != nil {
			err = errors.Join(err, fmt.Errorf("cannot see whether %s is cut off %s: %w", n.ID, from, cerr))
		}
		for _, t := range list {
			t.what, t.at = fmt.Sprintf("cut off %s, %s", from, t.Stream), toxics(file, proxy)+"/"+t.Name
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b toxic) int { return strings.Compare(a.what, b.what) })
	return all, err
}

// Heal undoes what faults of other processes may have left: our cuts, pauses, wrong clocks.
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
			if !strings.HasPrefix(c.Name, ours) {
				continue
			}
			err := f.remove(ctx, c.at)
			if all = errors.Join(all, err); err == nil {
				f.say(now(), "healed: %s was %s", n.ID, c.what)
			}
		}
	}
	for _, t := range processes(file) {
		all = errors.Join(all, f.wake(t))
		if t.kind == isNode && alive(t.PID) {
			_ = f.call(ctx, http.MethodDelete, t.URL+"/lab/pause", nil, nil, nil) // the node may have none
			all = errors.Join(all, f.SetClock(ctx, t.URL, 0, 0))
		}
	}
	if all != nil {
		return fmt.Errorf("%w: %w", ErrNotHealed, all)
	}
	return nil
}

// wake resumes a stopped process, if it is still a process of the fleet.
func (f *Fleet) wake(t Target) error {
	if !isStopped(t.PID) || !startedFor(t.PID, t.URL) {
		return nil
	}
	p, err := os.FindProcess(t.PID)
	if err == nil {
		err = child.Resume(p)
		_ = p.Release()
	}
	if err == nil {
		f.say(now(), "healed: %s is resumed (pid %d)", t.ID, t.PID)
	}
	return err
}
