package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// tickMS is the nodes' default.
const tickMS = 1000

// jobSeconds are the periods of the jobs.
func jobSeconds() []int64 { return []int64{1, 3} }

// putJobs gives the fleet a few jobs whose instants must all fire, once each: what
// nobody was there for is made up for. They are so few that a tick is no heavier.
func (s *trialRun) putJobs(ctx context.Context) error {
	for _, every := range jobSeconds() {
		if err := s.putJob(ctx, every); err != nil {
			return fmt.Errorf("the fleet can be given no job: %w", err)
		}
	}
	return nil
}

func (s *trialRun) putJob(ctx context.Context, seconds int64) (err error) {
	const tries = 3
	for try := range tries {
		// Each try has a key of its own: one of unknown outcome may fire before the next.
		job := api.Job{
			Key: fmt.Sprintf("every-%ds-%d", seconds, try), Schedule: fmt.Sprintf("@every %ds", seconds),
			Misfire: ledgerapi.MisfireAll, Payload: json.RawMessage(`{"run":"count"}`),
		}
		var put api.JobAnswer
		if put, err = s.nodes.PutJob(ctx, job); err == nil {
			s.jobs = append(s.jobs, history.Job{Key: job.Key, FirstMS: put.NextMS, EveryMS: 1000 * seconds})
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return err
}

// endJobs says until when the jobs must have fired, and leaves time for the last of it.
// What has not fired by then is left to the check.
func (s *trialRun) endJobs(ctx context.Context) error {
	var nowMS int64
	if err := await(ctx, "the ledger's time", func(ctx context.Context) bool {
		page, err := s.ledger.Jobs(ctx, group, 0, "", 1)
		nowMS = page.NowMS
		return err == nil
	}); err != nil {
		return err
	}
	until := nowMS
	for i := range s.jobs {
		j := &s.jobs[i]
		// A trial may be shorter than the way to the first instant.
		j.LastMS = max(j.FirstMS, nowMS-(nowMS-j.FirstMS)%j.EveryMS)
		until = max(until, j.LastMS)
	}
	err := await(ctx, "every job fired", func(ctx context.Context) bool {
		page, err := s.ledger.Jobs(ctx, group, until+1, "", 1)
		return err == nil && len(page.Items) == 0
	})
	if errors.Is(err, ErrNotSeen) {
		s.say("%v", err)
		return nil
	}
	return err
}
