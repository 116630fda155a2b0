package fleet

import (
	"fmt"
	"net/http"
	"os"
	"strconv"

	"github.com/tenurehq/tenure/app/fleet/api"
	"github.com/tenurehq/tenure/app/httpapi"
)

// stopHere stands between a leader's check and its write: once armed, the process stops
// itself there, and whoever armed it lets it go on.
func (n *Node) stopHere() {
	if !n.armed.Load() || !n.armed.CompareAndSwap(true, false) {
		return
	}
	n.cfg.Log.Warn("lab: stopping between the check and the write")
	err := stopProcess()
	n.cfg.Log.Warn("lab: going on", "error", err)
}

// postClock changes this node's clocks.
func (n *Node) postClock(w http.ResponseWriter, r *http.Request) {
	var to api.LabClock
	if err := httpapi.ReadJSON(w, r, maxBody, false, &to); err != nil {
		fail(w, err)
		return
	}
	const most = 1_000_000
	if to.DriftPPM <= -most || to.DriftPPM > 10*most {
		fail(w, &httpapi.Problem{Status: http.StatusBadRequest, Code: api.CodeRequest, Detail: "drift_ppm must be above -1000000 and at most 10000000: a clock does not stand still or go back"})
		return
	}
	n.lab.set(to)
	n.cfg.Log.Warn("lab: clock changed", "skew_ms", to.SkewMS, "drift_ppm", to.DriftPPM)
	httpapi.WriteJSON(w, http.StatusOK, to)
}

func (n *Node) postPause(w http.ResponseWriter, _ *http.Request) {
	body := fmt.Appendf(nil, `{"node_id":%q,"armed":true,"pid":%d}`+"\n", n.cfg.ID, os.Getpid())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
	// Under load the next write comes before the handler returns: whoever arms it is to
	// have the whole answer by then.
	_ = http.NewResponseController(w).Flush()
	n.armed.Store(true)
}

func (n *Node) getAttempts(w http.ResponseWriter, _ *http.Request) {
	httpapi.WriteJSON(w, http.StatusOK, n.attempts.list(n.cfg.ID))
}
