package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/sequencer"
	"github.com/tenurehq/tenure/server/httpapi"
)

// maxBody is the largest body of a request: a record with what is around it.
const maxBody = ledgerapi.MaxValue + 4096

// handler serves a node. /next is looked for first: everything that a router does would
// be paid by each call.
func (n *Node) handler() http.Handler {
	mux := httpapi.NewMux()
	mux.Handle("GET", "/status", n.getStatus)
	mux.Handle("GET", "/leader", n.getLeader)
	mux.Handle("POST", "/next", n.next)
	mux.Handle("GET", "/healthz", n.getHealth)
	mux.Handle("GET", "/metrics", promhttp.HandlerFor(n.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP)
	mux.Handle("GET", "/failovers", n.getFailovers)
	mux.Handle("POST", "/resign", n.operator(n.postResign))
	mux.Handle("POST", "/transfer", n.operator(n.postTransfer))

	mux.Handle("POST", "/jobs", n.postJob)
	mux.Handle("GET", "/jobs", n.getJobs)
	mux.Handle("DELETE", "/jobs", n.deleteJob)
	mux.Handle("GET", "/jobs/{key}", n.getJob)
	mux.Handle("DELETE", "/jobs/{key}", n.deleteJob)
	mux.Handle("GET", "/firings", n.getFirings)
	mux.Handle("PUT", "/fleet", n.putFleet)
	mux.Handle("GET", "/fleet", n.getFleet)
	mux.Handle("POST", "/compaction", n.postCompaction)
	mux.Handle("GET", "/compaction", n.getCompaction)
	mux.Handle("GET", "/records/{key}", n.getRecord)
	mux.Handle("PUT", "/records/{key}", n.putRecord)
	mux.Handle("DELETE", "/records/{key}", n.deleteRecord)
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && (r.URL.Path == "/v1/next" || r.URL.Path == "/next") {
			n.next(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
	if n.cfg.Hooks != nil {
		h = n.cfg.Hooks.Handler(h)
	}
	return h
}

// names are those by which callers may reach this node.
func (n *Node) names() []string {
	names := append([]string{n.cfg.Listen}, n.cfg.Hosts...)
	if u, err := url.Parse(n.address); err == nil {
		names = append(names, u.Host)
	}
	return names
}

// fail answers with an error; those of the ledger are passed on. What they say about
// addresses is logged and not sent.
func (n *Node) fail(w http.ResponseWriter, err error) {
	if ledgerapi.Internal(err) {
		n.cfg.Log.Warn("request failed", "error", err)
	}
	ledgerapi.WriteError(w, err)
}

// turnAway answers a call that only the leader can do.
func (n *Node) turnAway(w http.ResponseWriter, r *http.Request) {
	if l := n.leader(); l != nil && l.Candidate.ID != n.cfg.ID {
		w.Header().Set("Location", l.Candidate.Address+r.URL.RequestURI())
		n.fail(w, api.NotLeader(n.cfg.ID, n.cfg.Group, l.Candidate.ID, l.Candidate.Address, l.Token))
		return
	}
	n.fail(w, n.nobody())
}

func (n *Node) nobody() *httpapi.Problem {
	const after = time.Second
	last := ""
	if v := n.view.Load(); v != nil {
		last = v.Candidate.ID
	}
	return api.NoLeader(n.cfg.Group, last, n.token(), after)
}

// failWrite answers a call of the leader that was not done, or not surely.
func (n *Node) failWrite(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, sequencer.ErrBusy):
		n.fail(w, &httpapi.Problem{Status: http.StatusTooManyRequests, Code: api.CodeBusy, Detail: err.Error(), Retryable: true, RetryAfter: time.Second})
	case fencedwriter.Stop(err), errors.Is(err, sequencer.ErrStopped):
		// Nothing was written: a refused write changes nothing, the others were not sent.
		if l := n.leader(); l != nil && l.Candidate.ID != n.cfg.ID {
			n.turnAway(w, r)
			return
		}
		n.fail(w, &httpapi.Problem{
			Status: http.StatusServiceUnavailable, Code: api.CodeStepping, Retryable: true, RetryAfter: time.Second,
			Detail: fmt.Sprintf("%s no longer leads group %q, nothing was done; try again", n.cfg.ID, n.cfg.Group),
		})
	default:
		n.fail(w, err)
	}
}

func (n *Node) getStatus(w http.ResponseWriter, _ *http.Request) {
	s := api.Status{
		NodeID: n.cfg.ID, Group: n.cfg.Group, Role: api.Candidate, FenceToken: n.token(), Address: n.address, Backend: n.cfg.Backend,
		PID: os.Getpid(), LedgerOK: n.sink.ok(), PauseMaxMS: float64(n.pauses.longest().Microseconds()) / 1000,
	}
	if l := n.leader(); l != nil {
		s.Leader, s.LeaderAddress, s.SinceMS, s.FenceToken = l.Candidate.ID, l.Candidate.Address, l.Since.UnixMilli(), l.Token
		if l.Candidate.ID != n.cfg.ID {
			s.Role = api.Follower
		}
	}
	if t := n.term.Load(); t != nil && t.Remaining() > 0 {
		// What this node knows itself is newer than what it has seen.
		if s.Leader != n.cfg.ID {
			s.SinceMS = 0
		}
		s.Role, s.Leader, s.LeaderAddress, s.FenceToken = api.Leader, n.cfg.ID, n.address, t.Token()
		s.LeaseTTLRemainingMS = t.Remaining().Milliseconds()
	}
	s.LastSeq = n.highest.Load()
	if l := n.leading.Load(); l != nil {
		s.Working, s.LastSeq = true, l.seq.Last()
	}
	sched := n.scheduler.Status()
	s.JobsPending = int64(sched.JobsPending)
	if sched.Tick > 0 {
		s.LastTick = &api.Tick{N: sched.Tick, AtMS: sched.TickMS}
	}
	s.Scheduler, _ = json.Marshal(sched)
	httpapi.WriteJSON(w, http.StatusOK, s)
}

// getLeader is for load balancers: 200 on the node that leads and takes calls, 503 on
// every other.
func (n *Node) getLeader(w http.ResponseWriter, _ *http.Request) {
	if t := n.term.Load(); t != nil && n.leading.Load() != nil && t.Remaining() > 0 {
		w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprint(t.Token())))
		body := api.LeaderBody{Leader: n.cfg.ID, LeaderAddress: n.address, Token: t.Token()}
		if l := n.leader(); l != nil && l.Token == t.Token() {
			body.SinceMS = l.Since.UnixMilli()
		}
		httpapi.WriteJSON(w, http.StatusOK, body)
		return
	}
	p := n.nobody()
	if l := n.leader(); l != nil && l.Candidate.ID != n.cfg.ID {
		p = api.NotLeader(n.cfg.ID, n.cfg.Group, l.Candidate.ID, l.Candidate.Address, l.Token)
		p.Status = http.StatusServiceUnavailable
	}
	n.fail(w, p)
}

// getHealth says whether this node could lead: it can use the ledger, and sees the engine.
func (n *Node) getHealth(w http.ResponseWriter, r *http.Request) {
	p := &httpapi.Problem{Status: http.StatusServiceUnavailable, Code: api.CodeUnavailable, Retryable: true, RetryAfter: time.Second}
	err := n.health(r.Context())
	v := n.view.Load()
	switch {
	case errors.Is(err, ledgerapi.ErrDataLost):
		n.fail(w, err)
		return
	case errors.Is(err, fence.ErrRefused):
		p.Code, p.Detail, p.Retryable, p.RetryAfter = api.CodeForeign, err.Error(), false, 0
	case err != nil:
		p.Detail = "the ledger cannot be reached, or cannot write; the log says why"
	case v == nil || v.State == tenure.Unknown:
		p.Detail = "the engine cannot be seen"
	default:
		httpapi.WriteJSON(w, http.StatusOK, map[string]any{"status": "ok", "node_id": n.cfg.ID})
		return
	}
	n.fail(w, p)
}

func (n *Node) getFailovers(w http.ResponseWriter, r *http.Request) {
	all, err := n.failovers(r.Context())
	if err != nil {
		n.fail(w, err)
		return
	}
	if l := n.leading.Load(); l != nil {
		f, _ := l.record.state()
		all = merge(all, f)
	}
	if all == nil {
		all = []api.Failover{}
	}
	httpapi.WriteJSON(w, http.StatusOK, api.Failovers{Items: all})
}
