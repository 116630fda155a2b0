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

// maxBody is the largest body of a request: a record and what is around it.
const maxBody = ledgerapi.MaxValue + 4096

// handler serves a node. /next is looked for first, because the router would slow down every
// call.
func (n *Node) handler() http.Handler {
	mux := httpapi.NewMux()
	mux.Handle("GET", "/status", n.getStatus)
	mux.Handle("GET", "/leader", n.getLeader)
	mux.Handle("POST", "/next", n.next)
	mux.Handle("GET", "/healthz", n.answer(n.getHealth))
	mux.Handle("GET", "/metrics", promhttp.HandlerFor(n.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP)
	mux.Handle("GET", "/failovers", n.answer(n.getFailovers))
	mux.Handle("POST", "/resign", n.answer(n.operator(n.postResign)))
	mux.Handle("POST", "/transfer", n.answer(n.operator(n.postTransfer)))

	mux.Handle("POST", "/jobs", n.answer(n.leads(n.postJob)))
	mux.Handle("GET", "/jobs", n.answer(n.getJobs))
	mux.Handle("DELETE", "/jobs", n.answer(n.leads(n.deleteJob)))
	mux.Handle("GET", "/jobs/{key}", n.answer(n.getJob))
	mux.Handle("DELETE", "/jobs/{key}", n.answer(n.leads(n.deleteJob)))
	mux.Handle("GET", "/firings", n.answer(n.getFirings))
	mux.Handle("PUT", "/fleet", n.answer(n.leads(n.putFleet)))
	mux.Handle("GET", "/fleet", n.answer(n.getFleet))
	mux.Handle("POST", "/compaction", n.answer(n.leads(n.postCompaction)))
	mux.Handle("GET", "/compaction", n.answer(n.getCompaction))
	mux.Handle("GET", "/records/{key}", n.answer(n.getRecord))
	mux.Handle("PUT", "/records/{key}", n.answer(n.putRecord))
	mux.Handle("DELETE", "/records/{key}", n.answer(n.deleteRecord))
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

// handlerFunc answers a request with a value as JSON, or with an error.
type handlerFunc func(w http.ResponseWriter, r *http.Request) (any, error)

// answer writes what a handler returns. A handler that returns nothing has answered itself.
func (n *Node) answer(h handlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch v, err := h(w, r); {
		case err != nil:
			n.fail(w, r, err)
		case v != nil:
			httpapi.WriteJSON(w, http.StatusOK, v)
		}
	}
}

// leads turns a call away unless this node leads and takes calls.
func (n *Node) leads(h func(w http.ResponseWriter, r *http.Request, l *leading) (any, error)) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		if l := n.leading.Load(); l != nil {
			return h(w, r, l)
		}
		return nil, errNotLeading
	}
}

// errNotLeading: this node does not lead.
var errNotLeading = errors.New("fleet: this node does not lead")

// fail answers with an error. Errors of the ledger are passed on, but addresses in them are
// logged and not sent.
func (n *Node) fail(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, errNotLeading):
		p := n.notLeading()
		if address, ok := p.More["leader_address"]; ok {
			w.Header().Set("Location", fmt.Sprint(address)+r.URL.RequestURI())
		}
		err = p
	case errors.Is(err, sequencer.ErrBusy):
		err = &httpapi.Problem{Status: http.StatusTooManyRequests, Code: api.CodeBusy, Detail: err.Error(), Retryable: true, RetryAfter: time.Second}
	case ledgerapi.Internal(err):
		n.cfg.Log.Warn("request failed", "error", err)
	}
	ledgerapi.WriteError(w, err)
}

// notLeading is the answer to a call that only the leader can do.
func (n *Node) notLeading() *httpapi.Problem {
	if l := n.leader(); l != nil && l.Candidate.ID != n.cfg.ID {
		return api.NotLeader(n.cfg.ID, n.cfg.Group, l.Candidate.ID, l.Candidate.Address, l.Token)
	}
	last := ""
	if v := n.view.Load(); v != nil {
		last = v.Candidate.ID
	}
	return api.NoLeader(n.cfg.Group, last, n.token(), time.Second)
}

// writeError says what the error of a leader's write means for a caller.
func (n *Node) writeError(err error) error {
	if !fencedwriter.Stop(err) && !errors.Is(err, sequencer.ErrStopped) {
		return err
	}
	// Nothing was written: a refused write changes nothing, and the others were not sent.
	if l := n.leader(); l != nil && l.Candidate.ID != n.cfg.ID {
		return errNotLeading
	}
	return &httpapi.Problem{
		Status: http.StatusServiceUnavailable, Code: api.CodeStepping, Retryable: true, RetryAfter: time.Second,
		Detail: fmt.Sprintf("%s no longer leads group %q, nothing was done; try again", n.cfg.ID, n.cfg.Group),
	}
}

func (n *Node) getStatus(w http.ResponseWriter, _ *http.Request) {
	s := api.Status{
		NodeID: n.cfg.ID, Group: n.cfg.Group, Role: api.Candidate, FenceToken: n.token(), Address: n.address, Backend: n.cfg.backend(),
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
		w.Header().Set("ETag", ledgerapi.ETag(uint64(t.Token())))
		body := api.LeaderBody{Leader: n.cfg.ID, LeaderAddress: n.address, Token: t.Token()}
		if l := n.leader(); l != nil && l.Token == t.Token() {
			body.SinceMS = l.Since.UnixMilli()
		}
		httpapi.WriteJSON(w, http.StatusOK, body)
		return
	}
	p := n.notLeading()
	p.Status = http.StatusServiceUnavailable
	httpapi.WriteProblem(w, p)
}

// getHealth says whether this node could lead: it can use the ledger, and sees the engine.
func (n *Node) getHealth(_ http.ResponseWriter, r *http.Request) (any, error) {
	p := &httpapi.Problem{Status: http.StatusServiceUnavailable, Code: api.CodeUnavailable, Retryable: true, RetryAfter: time.Second}
	err := n.health(r.Context())
	v := n.view.Load()
	switch {
	case errors.Is(err, ledgerapi.ErrDataLost):
		return nil, err
	case errors.Is(err, fence.ErrRefused):
		p.Code, p.Detail, p.Retryable, p.RetryAfter = api.CodeForeign, err.Error(), false, 0
	case err != nil:
		p.Detail = "the ledger is unreachable or cannot write; the log says why"
	case v == nil || v.State == tenure.Unknown:
		p.Detail = "the engine cannot be reached"
	default:
		return map[string]any{"status": "ok", "node_id": n.cfg.ID}, nil
	}
	return nil, p
}

func (n *Node) getFailovers(_ http.ResponseWriter, r *http.Request) (any, error) {
	all, err := n.failovers(r.Context())
	if l := n.leading.Load(); l != nil {
		f, _ := l.record.state()
		all = merge(all, f)
	}
	if all == nil {
		all = []api.Failover{}
	}
	return api.Failovers{Items: all}, err
}
