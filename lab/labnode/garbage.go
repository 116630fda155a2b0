package labnode

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// garbageNode is an object with a pointer, for the garbage collector to follow.
type garbageNode struct {
	next *garbageNode
	body [7]uint64
}

const garbageNodeBytes = 64

// postGarbage keeps the garbage collector busy for as long as the request lasts: it fills the
// heap with pointers and keeps allocating, so that the collector never idles. It ends after
// its time or with the request.
func (h *Hooks) postGarbage(w http.ResponseWriter, r *http.Request) {
	var ask labapi.Garbage
	if err := httpapi.ReadJSON(w, r, maxBody, false, &ask); err != nil {
		ledgerapi.WriteError(w, err)
		return
	}
	const mostHeap, mostTime = 1024, 30_000
	if ask.HeapMB < 1 || ask.HeapMB > mostHeap || ask.ForMS < 1 || ask.ForMS > mostTime {
		ledgerapi.WriteError(w, &httpapi.Problem{Status: http.StatusBadRequest, Code: api.CodeRequest, Detail: fmt.Sprintf("heap_mb must be from 1 to %d and for_ms from 1 to %d", mostHeap, mostTime)})
		return
	}
	// Two concurrent requests would each restore the other's setting, and the last one would leave a wrong one.
	if !h.collecting.CompareAndSwap(false, true) {
		ledgerapi.WriteError(w, &httpapi.Problem{Status: http.StatusTooManyRequests, Code: api.CodeBusy, Detail: "the collector is kept busy already", Retryable: true, RetryAfter: time.Second})
		return
	}
	defer h.collecting.Store(false)
	kept := make([]*garbageNode, 1<<10)
	many := ask.HeapMB << 20 / garbageNodeBytes
	for i := range many {
		at := &kept[i%len(kept)]
		*at = &garbageNode{next: *at}
	}
	// Set this after the heap has grown, because growing it at one percent would take a collection at each step.
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(ask.ForMS)*time.Millisecond)
	defer cancel()
	var before, after debug.GCStats
	debug.ReadGCStats(&before)
	allocateGarbage(ctx, kept, many/50)
	debug.ReadGCStats(&after)
	httpapi.WriteJSON(w, http.StatusOK, labapi.Collected{Cycles: after.NumGC - before.NumGC, Stopped: (after.PauseTotal - before.PauseTotal).Microseconds()})
}

// allocateGarbage allocates many objects every 20 ms and keeps kept alive. With fifty times as many
// in kept, at one percent of growth a collection is always due.
func allocateGarbage(ctx context.Context, kept []*garbageNode, many int) {
	every := time.NewTicker(20 * time.Millisecond)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			kept[0].body[0]++ // keeps them alive until here
			return
		case <-every.C:
		}
		var waste *garbageNode
		for range many {
			waste = &garbageNode{next: waste}
		}
		kept[0].body[1] += waste.body[0]
	}
}
