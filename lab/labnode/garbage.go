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

// litter is something that the garbage collector has to follow.
type litter struct {
	next *litter
	body [7]uint64
}

const litterBytes = 64

// postGarbage gives the garbage collector work for as long as the request lasts: a heap
// full of pointers, and so much more allocated all the time that the collector never
// rests. It ends by itself, and with whoever asked for it.
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
	// Two at a time would restore what the other has set: the last one leaves it wrong.
	if !h.collecting.CompareAndSwap(false, true) {
		ledgerapi.WriteError(w, &httpapi.Problem{Status: http.StatusTooManyRequests, Code: api.CodeBusy, Detail: "the collector is kept busy already", Retryable: true, RetryAfter: time.Second})
		return
	}
	defer h.collecting.Store(false)
	kept := make([]*litter, 1<<10)
	many := ask.HeapMB << 20 / litterBytes
	for i := range many {
		at := &kept[i%len(kept)]
		*at = &litter{next: *at}
	}
	// Only now: to grow at one percent a time would be a storm of its own.
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(ask.ForMS)*time.Millisecond)
	defer cancel()
	var before, after debug.GCStats
	debug.ReadGCStats(&before)
	scatter(ctx, kept, many/50)
	debug.ReadGCStats(&after)
	httpapi.WriteJSON(w, http.StatusOK, labapi.Collected{Cycles: after.NumGC - before.NumGC, Stopped: (after.PauseTotal - before.PauseTotal).Microseconds()})
}

// scatter allocates as many every 20 ms, and keeps what it is given alive: where that is
// fifty times as many, at one percent of growth a collection is always due.
func scatter(ctx context.Context, kept []*litter, many int) {
	every := time.NewTicker(20 * time.Millisecond)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			kept[0].body[0]++ // until here they are in use
			return
		case <-every.C:
		}
		var waste *litter
		for range many {
			waste = &litter{next: waste}
		}
		kept[0].body[1] += waste.body[0]
	}
}
