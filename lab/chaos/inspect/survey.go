package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/chaos/process"
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
	file, err := f.File()
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
			cuts, err := f.Cuts(ctx, file, n)
			for _, c := range cuts {
				s.Standing = append(s.Standing, c.What)
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
	ctx, cancel := context.WithTimeout(ctx, AskTime)
	defer cancel()
	sent := time.Now()
	status, err := f.Status(ctx, n.URL)
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
	case !process.Alive(pid):
		return []string{"gone"}
	case process.IsStopped(pid):
		return []string{"stopped"}
	}
	return nil
}

// Toxic is something in a proxy that blocks it.
type Toxic struct {
	Name   string `json:"name"`
	Stream string `json:"stream"`

	// What describes it, At is its URL.
	What string `json:"-"`
	At   string `json:"-"`
}

// Cuts are the cuts of a node, at the proxies that answer.
func (f *Fleet) Cuts(ctx context.Context, file labapi.FleetFile, n labapi.NodeFile) (all []Toxic, err error) {
	ctx, cancel := context.WithTimeout(ctx, AskTime)
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
		var list []Toxic
		if cerr := f.Call(ctx, CallTime, http.MethodGet, Toxics(file, proxy), nil, nil, &list); cerr != nil {
			err = errors.Join(err, fmt.Errorf("cannot see whether %s is cut off %s: %w", n.ID, from, cerr))
		}
		for _, t := range list {
			t.What, t.At = fmt.Sprintf("cut off %s, %s", from, t.Stream), Toxics(file, proxy)+"/"+t.Name
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b Toxic) int { return strings.Compare(a.What, b.What) })
	return all, err
}

// Toxics is the URL of the toxics of a proxy.
func Toxics(file labapi.FleetFile, proxy string) string {
	return strings.TrimRight(file.Proxies.API, "/") + "/proxies/" + proxy + "/toxics"
}

// Reacts reports whether a server sends something or closes the connection. It need not
// understand HTTP.
func Reacts(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, AskTime/2)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	_, werr := conn.Write([]byte("GET /healthz HTTP/1.0\r\n\r\n"))
	if errors.Join(werr, conn.SetDeadline(deadline)) != nil {
		return false
	}
	_, err = conn.Read(make([]byte, 1))
	return err == nil || !errors.Is(err, os.ErrDeadlineExceeded)
}
