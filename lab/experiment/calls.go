package experiment

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
)

// proposals is the name under which counted keeps what etcd has committed.
const proposals = "commits"

// counted is what an engine says that it was asked, by method, since it was started.
type counted map[string]float64

// engineCalls asks etcd itself.
func (s *trialRun) engineCalls(ctx context.Context) (counted, error) {
	var text string
	if err := s.chaos.Call(ctx, 10*time.Second, http.MethodGet, s.file.Engine.URL+"/metrics", nil, nil, &text); err != nil {
		return nil, fmt.Errorf("the engine's metrics: %w", err)
	}
	return readCounted(text), nil
}

func readCounted(text string) counted {
	c := counted{}
	for line := range strings.Lines(text) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || v == 0 {
			continue
		}
		switch name, labels, _ := strings.Cut(series, "{"); name {
		case "grpc_server_started_total":
			_, rest, _ := strings.Cut(labels, `grpc_method="`)
			method, _, _ := strings.Cut(rest, `"`)
			c[method] += v
		case "etcd_server_proposals_committed_total":
			c[proposals] = v
		}
	}
	return c
}

// rate is by how much it has grown, in a second.
func (c counted) rate(since counted, over time.Duration) counted {
	r := counted{}
	for name, v := range c {
		if d := v - since[name]; d > 0 {
			r[name] = d / over.Seconds()
		}
	}
	return r
}

// calls is all but the commits.
func (c counted) calls() (sum float64) {
	for name, v := range c {
		if name != proposals {
			sum += v
		}
	}
	return sum
}

// beats are the calls of keep-alives: each has a read behind it.
func (c counted) beats() float64 { return 2 * c["LeaseKeepAlive"] }

// nodeCall is a call of a node to its engine, from its trace.
type nodeCall struct {
	node string
	pid  int
	at   clock.Instant
	what string
}

// nodeCalls are those of all nodes, in order.
func nodeCalls(traces string) ([]nodeCall, error) {
	paths, err := filepath.Glob(filepath.Join(traces, "*.trace"))
	if err != nil {
		return nil, err
	}
	var all []nodeCall
	for _, path := range paths {
		node := strings.TrimSuffix(filepath.Base(path), ".trace")
		// Most lines are writes.
		err := eachLine(path, `"`+api.TraceCall+`"`, func(l labapi.TraceLine) error {
			if l.Kind == api.TraceCall {
				all = append(all, nodeCall{node, l.PID, l.At, l.What})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(all, func(a, b nodeCall) int { return cmp.Compare(a.at, b.at) })
	return all, nil
}

// aftermath is for how long after a term began calls are still its vacancy's.
const aftermath = time.Second

// electing counts, for each round, the calls that its vacancy led to: attempts to
// acquire, and all of them with the reads that follow, until a second after the term
// began. The line is read ahead of time, by everybody and now and then, and a process
// that joins asks more than one that waits: neither is the vacancy's doing. Whoever
// tries may have seen it a little before those who tell.
func electing(calls []nodeCall, o Outcome) (tries, all []int) {
	const ahead = 100 * time.Millisecond
	var vacant, over []clock.Instant
	for i := range o.Rounds {
		if terms := elected(o, i); len(terms) > 0 && terms[0].Vacant > 0 {
			vacant, over = append(vacant, terms[0].Vacant.Add(-ahead)), append(over, terms[0].Began.Add(aftermath))
		}
	}
	tries, all = make([]int, len(vacant)), make([]int, len(vacant))
	opened := map[int]clock.Instant{} // by pid
	for _, c := range calls {
		if _, known := opened[c.pid]; c.what == api.CallOpen && !known {
			opened[c.pid] = c.at
		}
		i, _ := slices.BinarySearch(vacant, c.at+1)
		if i--; i < 0 || c.at > over[i] {
			continue
		}
		if since, known := opened[c.pid]; !known || since > vacant[i] {
			continue
		}
		switch c.what {
		case api.CallAcquire:
			tries[i]++
			all[i]++
		case api.CallRead, api.CallRelease:
			all[i]++
		}
	}
	return tries, all
}
