package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/worker"
)

// Jobs returns the jobs of every trial, by period: few, so that they do not slow down a tick.
func Jobs() []history.Job { return []history.Job{{EveryMS: 1000}, {EveryMS: 3000}} }

// putJobs creates the jobs. Each of their instants must fire exactly once; instants without
// a leader are made up for.
func (s *Run) putJobs(ctx context.Context) error {
	for _, j := range Jobs() {
		const tries = 3
		var err error
		for try := range tries {
			// Each try has its own key: one of unknown outcome may fire before the next.
			j.Key = fmt.Sprintf("every-%ds-%d", j.EveryMS/1000, try)
			var put api.JobAnswer
			put, err = s.Nodes.PutJob(ctx, api.Job{Key: j.Key, Schedule: fmt.Sprintf("@every %ds", j.EveryMS/1000), Misfire: ledgerapi.MisfireAll, Payload: json.RawMessage(`{"run":"count"}`)})
			if err == nil {
				j.FirstMS = put.NextMS
				s.jobs = append(s.jobs, j)
				break
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		if err != nil {
			return fmt.Errorf("create job %s: %w", j.Key, err)
		}
	}
	return nil
}

// endJobs records until when the jobs must have fired, and waits for the last instants. The
// check finds those that have not fired.
func (s *Run) endJobs(ctx context.Context) error {
	var nowMS int64
	if err := Await(ctx, "the ledger's time", func(ctx context.Context) bool {
		page, err := s.Ledger.Jobs(ctx, Group, 0, "", 1)
		nowMS = page.NowMS
		return err == nil
	}); err != nil {
		return err
	}
	until := nowMS
	for i := range s.jobs {
		j := &s.jobs[i]
		// A trial may end before the first instant.
		j.LastMS = max(j.FirstMS, nowMS-(nowMS-j.FirstMS)%j.EveryMS)
		until = max(until, j.LastMS)
	}
	err := Await(ctx, "every job fired", func(ctx context.Context) bool {
		page, err := s.Ledger.Jobs(ctx, Group, until+1, "", 1)
		return err == nil && len(page.Items) == 0
	})
	if errors.Is(err, ErrNotSeen) {
		s.Say("%v", err)
		return nil
	}
	return err
}

// WorkerCounts are the counters of a worker. At is when they were first seen, up to
// pollEvery after they changed.
type WorkerCounts struct {
	Worker string        `json:"worker"`
	At     clock.Instant `json:"at"`
	// Token is the highest that the worker has seen.
	Token      fence.Token `json:"token"`
	Accepted   uint64      `json:"accepted"`
	Refused    uint64      `json:"refused"`
	Duplicates uint64      `json:"duplicates"`
	// Runs is how often it has executed its standing orders.
	Runs uint64 `json:"runs"`
}

const (
	pollEvery = 20 * time.Millisecond
	maxOrders = 10_000 // how many WorkerCounts are kept
)

// WatchWorkers gives the workers a standing order and records their counters until stop is
// called. Without workers it does nothing.
func (s *Run) WatchWorkers(ctx context.Context) (stop func(), err error) {
	if s.Workers == 0 {
		return func() {}, nil
	}
	l, err := s.Leader(ctx, 0)
	if err == nil {
		order := api.Fleet{Orders: []api.Order{{Name: "sweep", Run: "count", EveryMS: 500}}}
		err = s.Chaos.Call(ctx, 10*time.Second, http.MethodPut, l.URL+"/fleet", nil, order, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("give the workers a standing order: %w", err)
	}
	if err := Await(ctx, "every worker with its standing order and a job accepted", func(ctx context.Context) bool {
		jobs := uint64(0)
		for _, w := range s.File.Workers {
			st, err := s.workerStatus(ctx, w.URL)
			if err != nil || len(st.Orders) == 0 {
				return false
			}
			jobs += st.Done
		}
		return jobs > 0
	}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var polling sync.WaitGroup
	var mu sync.Mutex
	for _, w := range s.File.Workers {
		polling.Go(func() {
			var last WorkerCounts
			for ; ctx.Err() == nil; _ = s.Hold(ctx, pollEvery) {
				st, err := s.workerStatus(ctx, w.URL)
				if err != nil {
					continue
				}
				seen := WorkerCounts{Worker: w.ID, At: last.At, Token: st.Token, Accepted: st.Accepted, Refused: st.Refused, Duplicates: st.Duplicates, Runs: last.Runs}
				if seen == last {
					continue
				}
				seen.At, seen.Runs = now(), 0
				for _, o := range st.Orders {
					seen.Runs += o.Runs
				}
				last = seen
				mu.Lock()
				if len(s.Orders) < maxOrders {
					s.Orders = append(s.Orders, seen)
				}
				mu.Unlock()
			}
		})
	}
	return func() {
		cancel()
		polling.Wait()
	}, nil
}

// Refusals returns how many orders the workers have refused because of their token.
func (s *Run) Refusals(ctx context.Context) (n uint64, err error) {
	for _, w := range s.File.Workers {
		st, e := s.workerStatus(ctx, w.URL)
		n, err = n+st.Refused, errors.Join(err, e)
	}
	return n, err
}

// WorkerTokens returns the highest token that each worker has seen.
func (s *Run) WorkerTokens(ctx context.Context) (tokens []fence.Token, err error) {
	for _, w := range s.File.Workers {
		st, e := s.workerStatus(ctx, w.URL)
		tokens, err = append(tokens, st.Token), errors.Join(err, e)
	}
	return tokens, err
}

func (s *Run) workerStatus(ctx context.Context, url string) (st worker.Status, err error) {
	err = s.Chaos.Call(ctx, 500*time.Millisecond, http.MethodGet, url+"/status", nil, nil, &st)
	return st, err
}
