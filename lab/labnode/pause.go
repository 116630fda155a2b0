package labnode

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// pause lets an experiment make the process stop itself.
type pause struct {
	// mu is held while the process is stopped, so that a caller that disarms the pause knows
	// whether it has happened.
	mu    sync.Mutex
	armed atomic.Pointer[order] // nil: none
}

// order tells the process to stop at a moment. It expires, because whoever gave it may die.
type order struct {
	at    string
	until clock.Instant // on the host's clock
}

// take removes the order to stop at this moment. It reports whether there was one that had
// not expired.
func (p *pause) take(at string, now clock.Instant) bool {
	o := p.armed.Load()
	return o != nil && o.at == at && p.armed.CompareAndSwap(o, nil) && now <= o.until
}

// stopAt stops the process if an experiment has armed a pause for this moment. That
// experiment resumes the process.
func (h *Hooks) stopAt(at string) {
	if h.pause.armed.Load() == nil {
		return
	}
	h.pause.mu.Lock()
	defer h.pause.mu.Unlock()
	if !h.pause.take(at, h.host.Now()) {
		return
	}
	h.log.Warn("lab: stopping", "at", at)
	err := stopProcess()
	h.log.Warn("lab: continued", "at", at, "error", err)
}

// postPause arms the pause at the moment at=, by default between a check and a write.
func (h *Hooks) postPause(w http.ResponseWriter, r *http.Request) {
	at := r.URL.Query().Get("at")
	moments := []string{api.MomentWrite, api.MomentSend, api.MomentGranted, api.MomentSealed, api.MomentResigning}
	if at == "" {
		at = api.MomentWrite
	} else if !slices.Contains(moments, at) {
		ledgerapi.WriteError(w, &httpapi.Problem{Status: http.StatusBadRequest, Code: api.CodeRequest, Detail: fmt.Sprintf("at is %.32q; it must be one of %q", at, moments)})
		return
	}
	h.pause.mu.Lock() // a concurrent disarm comes after
	defer h.pause.mu.Unlock()
	h.writeArmed(w, true)
	// Under load the next write comes before the handler returns, so send the whole answer first.
	_ = http.NewResponseController(w).Flush()
	h.pause.armed.Store(&order{at, h.host.Now().Add(labapi.ArmedFor)})
}

// deletePause disarms the pause. After the answer it cannot happen.
func (h *Hooks) deletePause(w http.ResponseWriter, _ *http.Request) {
	h.pause.mu.Lock()
	h.pause.armed.Store(nil)
	h.pause.mu.Unlock()
	h.writeArmed(w, false)
}

func (h *Hooks) writeArmed(w http.ResponseWriter, armed bool) {
	body := fmt.Appendf(nil, `{"node_id":%q,"armed":%t,"pid":%d}`+"\n", h.cfg.ID, armed, os.Getpid())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}
