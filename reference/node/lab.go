package node

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// hook is where experiments tell the process to stop itself.
type hook struct {
	// mu is held while it stops, so that it is known whether a pause that is taken back
	// has come.
	mu    sync.Mutex
	armed atomic.Pointer[order] // nil: nothing
}

// order is to stop at a moment. It is good until an instant of the host's clock: whoever
// gave it may have died.
type order struct {
	at    string
	until clock.Instant
}

// stopAt stands at a moment of a leader's life: once armed, the process stops itself
// there, and whoever armed it lets it go on.
func (n *Node) stopAt(at string) {
	if n.hook.armed.Load() == nil {
		return
	}
	n.hook.mu.Lock()
	defer n.hook.mu.Unlock()
	if !n.hook.hit(at, n.host.Now()) {
		return
	}
	n.cfg.Log.Warn("lab: stopping", "at", at)
	err := stopProcess()
	n.cfg.Log.Warn("lab: going on", "at", at, "error", err)
}

// hit takes the order to stop at a moment, if there is one.
func (h *hook) hit(at string, now clock.Instant) bool {
	o := h.armed.Load()
	return o != nil && o.at == at && h.armed.CompareAndSwap(o, nil) && now <= o.until
}

// postClock changes this node's clocks.
func (n *Node) postClock(w http.ResponseWriter, r *http.Request) {
	var to api.LabClock
	if err := httpapi.ReadJSON(w, r, maxBody, false, &to); err != nil {
		n.fail(w, err)
		return
	}
	const most = 1_000_000
	if to.DriftPPM <= -most || to.DriftPPM > 10*most {
		n.fail(w, &httpapi.Problem{Status: http.StatusBadRequest, Code: api.CodeRequest, Detail: "drift_ppm must be above -1000000 and at most 10000000: a clock does not stand still or go back"})
		return
	}
	n.lab.set(to)
	n.cfg.Log.Warn("lab: clock changed", "skew_ms", to.SkewMS, "drift_ppm", to.DriftPPM)
	httpapi.WriteJSON(w, http.StatusOK, to)
}

// postPause arms the pause; the moment is at=, by default between a check and a write.
func (n *Node) postPause(w http.ResponseWriter, r *http.Request) {
	at := r.URL.Query().Get("at")
	switch at {
	case "":
		at = api.MomentWrite
	case api.MomentWrite, api.MomentGranted, api.MomentSealed, api.MomentResigning:
	default:
		n.fail(w, &httpapi.Problem{Status: http.StatusBadRequest, Code: api.CodeRequest, Detail: fmt.Sprintf("at is %.32q: %s, %s, %s or %s", at, api.MomentWrite, api.MomentGranted, api.MomentSealed, api.MomentResigning)})
		return
	}
	n.hook.mu.Lock() // who takes it back meanwhile comes after
	defer n.hook.mu.Unlock()
	n.writeArmed(w, true)
	// Under load the next write comes before the handler returns: whoever arms it is to
	// have the whole answer by then.
	_ = http.NewResponseController(w).Flush()
	n.hook.armed.Store(&order{at, n.host.Now().Add(api.ArmedFor)})
}

// deletePause takes back a pause that has not come. Once it is answered none will.
func (n *Node) deletePause(w http.ResponseWriter, _ *http.Request) {
	n.hook.mu.Lock()
	n.hook.armed.Store(nil)
	n.hook.mu.Unlock()
	n.writeArmed(w, false)
}

func (n *Node) writeArmed(w http.ResponseWriter, armed bool) {
	body := fmt.Appendf(nil, `{"node_id":%q,"armed":%t,"pid":%d}`+"\n", n.cfg.ID, armed, os.Getpid())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}

func (n *Node) getAttempts(w http.ResponseWriter, _ *http.Request) {
	httpapi.WriteJSON(w, http.StatusOK, n.attempts.list(n.cfg.ID))
}
