// Package nodehttp serves a node over HTTP.
package nodehttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node"
	"github.com/tenurehq/tenure/reference/sequencer"
	"github.com/tenurehq/tenure/server/httpapi"
)

// maxBody is the largest body of a request: a record and its JSON.
const maxBody = ledgerapi.MaxValue + 4096

// Run runs a node and serves it until ctx ends: see node.Node.Run.
func Run(ctx context.Context, cfg node.Config, ready func(api.Ready) error) error {
	n, err := node.New(cfg)
	if err != nil {
		return err
	}
	secret, err := readSecret(cfg.AdminCredentialFile)
	if err != nil {
		return err
	}
	return n.Run(ctx, (&handler{Node: n, secret: secret}).routes(), ready)
}

// handler serves a node.
type handler struct {
	*node.Node
	secret  []byte    // of AdminCredentialFile
	buffers sync.Pool // of *[]byte, for the answers of /next
}

// routes looks for /next first, because the router would slow down every call.
func (n *handler) routes() http.Handler {
	mux := httpapi.NewMux()
	mux.Handle("GET", "/status", n.getStatus)
	mux.Handle("GET", "/leader", n.getLeader)
	mux.Handle("POST", "/next", n.next)
	mux.Handle("GET", "/healthz", n.answer(n.getHealth))
	mux.Handle("GET", "/metrics", promhttp.HandlerFor(n.Registry(), promhttp.HandlerOpts{}).ServeHTTP)
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
	if n.Config.Hooks != nil {
		h = n.Config.Hooks.Handler(h)
	}
	return h
}

// handlerFunc answers a request with a value as JSON, or with an error.
type handlerFunc func(w http.ResponseWriter, r *http.Request) (any, error)

// answer writes what a handler returns. A handler that returns nothing has answered itself.
func (n *handler) answer(h handlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch v, err := h(w, r); {
		case err != nil:
			n.fail(w, r, err)
		case v != nil:
			httpapi.WriteJSON(w, http.StatusOK, v)
		}
	}
}

// leads refuses a call unless this node leads and serves calls.
func (n *handler) leads(h func(w http.ResponseWriter, r *http.Request, l *node.Leading) (any, error)) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		if l := n.Leading(); l != nil {
			return h(w, r, l)
		}
		return nil, errNotLeading
	}
}

// errNotLeading: this node does not lead.
var errNotLeading = errors.New("fleet: this node does not lead")

// fail answers with an error. Errors of the ledger are passed on, but addresses in them are
// logged and not sent.
func (n *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
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
		n.Config.Log.Warn("request failed", "error", err)
	}
	ledgerapi.WriteError(w, err)
}

// notLeading is the answer to a call that only the leader can do.
func (n *handler) notLeading() *httpapi.Problem {
	if l := n.Leader(); l != nil && l.Candidate.ID != n.Config.ID {
		return api.NotLeader(n.Config.ID, n.Config.Group, l.Candidate.ID, l.Candidate.Address, l.Token)
	}
	last := ""
	if v := n.View(); v != nil {
		last = v.Candidate.ID
	}
	return api.NoLeader(n.Config.Group, last, n.Token(), time.Second)
}

// writeError converts the error of a leader's write into one for the caller.
func (n *handler) writeError(err error) error {
	if !fencedwriter.Stop(err) && !errors.Is(err, sequencer.ErrStopped) {
		return err
	}
	// Nothing was written: a refused write changes nothing, and the others were not sent.
	if l := n.Leader(); l != nil && l.Candidate.ID != n.Config.ID {
		return errNotLeading
	}
	return &httpapi.Problem{
		Status: http.StatusServiceUnavailable, Code: api.CodeStepping, Retryable: true, RetryAfter: time.Second,
		Detail: fmt.Sprintf("%s no longer leads group %q, nothing was done; try again", n.Config.ID, n.Config.Group),
	}
}

func (n *handler) getStatus(w http.ResponseWriter, _ *http.Request) {
	s := api.Status{
		NodeID: n.Config.ID, Group: n.Config.Group, Role: api.Candidate, FenceToken: n.Token(), Address: n.Address, Backend: n.Config.Backend(),
		PID: os.Getpid(), LedgerOK: n.LedgerOK(), Kept: n.Kept(), PauseMaxMS: float64(n.LongestPause().Microseconds()) / 1000,
	}
	if l := n.Leader(); l != nil {
		s.Leader, s.LeaderAddress, s.SinceMS, s.FenceToken = l.Candidate.ID, l.Candidate.Address, l.Since.UnixMilli(), l.Token
		if l.Candidate.ID != n.Config.ID {
			s.Role = api.Follower
		}
	}
	if t := n.Term(); t != nil && t.Remaining() > 0 {
		// This node's own term is newer than what its watch has seen.
		if s.Leader != n.Config.ID {
			s.SinceMS = 0
		}
		s.Role, s.Leader, s.LeaderAddress, s.FenceToken = api.Leader, n.Config.ID, n.Address, t.Token()
		s.LeaseTTLRemainingMS = t.Remaining().Milliseconds()
	}
	s.LastSeq = n.LastSeq()
	if l := n.Leading(); l != nil {
		s.Working, s.LastSeq = true, l.Sequencer.Last()
	}
	sched := n.Scheduler.Status()
	s.JobsPending = int64(sched.JobsPending)
	if sched.Tick > 0 {
		s.LastTick = &api.Tick{N: sched.Tick, AtMS: sched.TickMS}
	}
	s.Scheduler, _ = json.Marshal(sched)
	httpapi.WriteJSON(w, http.StatusOK, s)
}

// getLeader is for load balancers: 200 on the node that leads and takes calls, 503 on
// every other.
func (n *handler) getLeader(w http.ResponseWriter, _ *http.Request) {
	if t := n.Term(); t != nil && n.Leading() != nil && t.Remaining() > 0 {
		w.Header().Set("ETag", ledgerapi.ETag(uint64(t.Token())))
		body := api.LeaderBody{Leader: n.Config.ID, LeaderAddress: n.Address, Token: t.Token()}
		if l := n.Leader(); l != nil && l.Token == t.Token() {
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
func (n *handler) getHealth(_ http.ResponseWriter, r *http.Request) (any, error) {
	p := &httpapi.Problem{Status: http.StatusServiceUnavailable, Code: api.CodeUnavailable, Retryable: true, RetryAfter: time.Second}
	err := n.Health(r.Context())
	v := n.View()
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
		return map[string]any{"status": "ok", "node_id": n.Config.ID}, nil
	}
	return nil, p
}

func (n *handler) getFailovers(_ http.ResponseWriter, r *http.Request) (any, error) {
	all, err := n.Failovers(r.Context())
	return api.Failovers{Items: all}, err
}
