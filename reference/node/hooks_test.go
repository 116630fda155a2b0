package node_test

import (
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/raft"
	"github.com/tenurehq/tenure/reference/node"
)

// pauseHooks pause the process at the moment that POST /pause?at= names, until SIGCONT.
type pauseHooks struct {
	armed     atomic.Pointer[string]
	continued chan os.Signal
}

func newPauseHooks() *pauseHooks {
	h := &pauseHooks{continued: make(chan os.Signal, 1)}
	signal.Notify(h.continued, syscall.SIGCONT)
	return h
}

func (*pauseHooks) Clock() clock.Clock                  { return clock.System() }
func (*pauseHooks) Lease(cfg lease.Config) lease.Config { return cfg }
func (*pauseHooks) Raft(cfg raft.Config) raft.Config    { return cfg }
func (*pauseHooks) Observe(node.Event)                  {}

func (h *pauseHooks) Reached(moment string) {
	if at := h.armed.Load(); at != nil && *at == moment && h.armed.CompareAndSwap(at, nil) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		<-h.continued
	}
}

func (h *pauseHooks) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/pause" {
			next.ServeHTTP(w, r)
			return
		}
		at := r.URL.Query().Get("at")
		_ = http.NewResponseController(w).Flush() // the caller gets its answer before the pause
		h.armed.Store(&at)
	})
}
