package experiment

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/worker"
)

// workerCounts is what a worker had taken and refused at an instant. The instant is when that
// was first seen, up to lookEvery later than it was so.
type workerCounts struct {
	Worker string        `json:"worker"`
	At     clock.Instant `json:"at"`
	// Token is the highest that it had seen.
	Token      fence.Token `json:"token"`
	Accepted   uint64      `json:"accepted"`
	Refused    uint64      `json:"refused"`
	Duplicates uint64      `json:"duplicates"`
	// Runs is how often it had acted on its standing orders.
	Runs uint64 `json:"runs"`
}

const (
	lookEvery = 20 * time.Millisecond
	maxOrders = 10_000 // what is kept of a trial
)

// watchWorkers gives the workers a standing order besides the jobs of every trial, and
// writes down what they take until the returned function is called. Without workers it
// does nothing.
func (s *trialRun) watchWorkers(ctx context.Context) (stop func(), err error) {
	if s.trial.Workers == 0 {
		return func() {}, nil
	}
	if err := s.standing(ctx); err != nil {
		return nil, fmt.Errorf("the workers can be given no standing order: %w", err)
	}
	if err := await(ctx, "every worker with its standing order and a job taken", func(ctx context.Context) bool {
		jobs := uint64(0)
		for _, w := range s.file.Workers {
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
	var looking sync.WaitGroup
	var mu sync.Mutex
	for _, w := range s.file.Workers {
		looking.Go(func() {
			var last workerCounts
			for ; ctx.Err() == nil; _ = s.hold(ctx, lookEvery) {
				st, err := s.workerStatus(ctx, w.URL)
				if err != nil {
					continue
				}
				seen := workerCounts{Worker: w.ID, Token: st.Token, Accepted: st.Accepted, Refused: st.Refused, Duplicates: st.Duplicates}
				same := last
				same.At, same.Runs = 0, 0
				if seen == same {
					continue
				}
				seen.At = now()
				for _, o := range st.Orders {
					seen.Runs += o.Runs
				}
				last = seen
				mu.Lock()
				if len(s.workerCounts) < maxOrders {
					s.workerCounts = append(s.workerCounts, seen)
				}
				mu.Unlock()
			}
		})
	}
	return func() {
		cancel()
		looking.Wait()
	}, nil
}

// standing tells the leader what all workers do on and on.
func (s *trialRun) standing(ctx context.Context) error {
	l, err := s.leader(ctx, 0)
	if err != nil {
		return err
	}
	workerCounts := api.Fleet{Orders: []api.Order{{Name: "sweep", Run: "count", EveryMS: 500}}}
	return s.chaos.Call(ctx, 10*time.Second, http.MethodPut, l.URL+"/fleet", nil, workerCounts, nil)
}

func (s *trialRun) workerStatus(ctx context.Context, url string) (st worker.Status, err error) {
	err = s.chaos.Call(ctx, 500*time.Millisecond, http.MethodGet, url+"/status", nil, nil, &st)
	return st, err
}
