package experiment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/lab/load"
	"github.com/tenurehq/tenure/reference/api"
	fleetclient "github.com/tenurehq/tenure/reference/client"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	ledgerclient "github.com/tenurehq/tenure/reference/ledger/client"
)

// ErrNotSeen: the fleet ran, and something that the script waits for did not happen.
var ErrNotSeen = errors.New("not seen")

// patience is how long the script waits for something: a loaded machine is no reason
// to have seen nothing.
const patience = 60 * time.Second

// trialRun is a fleet at work, for the script of a trial.
type trialRun struct {
	trial  Trial
	rng    *rand.Rand
	say    func(format string, args ...any)
	round  func() // a round is over
	fleet  *lab.Fleet
	file   labapi.FleetFile
	chaos  *chaos.Fleet
	nodes  *fleetclient.Client
	ledger *ledgerclient.Client
	calls  *check.Writer
	faults *check.Writer

	jobs         []check.Job
	rounds       []Round
	workerCounts []workerCounts
	load         load.Report
	loads        int

	churnCost *churnCost // nil: it was no storm of kills
}

func (s *trialRun) urls() (urls []string) {
	for _, n := range s.file.Nodes {
		urls = append(urls, n.URL)
	}
	return urls
}

func (s *trialRun) url(id string) string {
	for _, n := range s.file.Nodes {
		if n.ID == id {
			return n.URL
		}
	}
	return ""
}

// runScript runs the script under load, with jobs that must fire meanwhile.
func (s *trialRun) runScript(ctx context.Context) error {
	return s.underLoad(ctx, func(ctx context.Context) error {
		if err := errors.Join(s.putJobs(ctx), s.hold(ctx, time.Second)); err != nil {
			return err
		}
		if err := s.trial.play(ctx, s); err != nil {
			return err
		}
		// What was healed last shall be seen to be well.
		if err := errors.Join(s.all(ctx), s.hold(ctx, time.Second)); err != nil {
			return err
		}
		return s.endJobs(ctx)
	})
}

// underLoad connects to the fleet, waits for a leader, and lets callers call while do
// runs.
func (s *trialRun) underLoad(ctx context.Context, do func(context.Context) error) error {
	var err error
	if s.nodes, err = fleetclient.New(fleetclient.Config{URLs: s.urls(), Timeout: 2 * time.Second}); err != nil {
		return err
	}
	defer s.nodes.Close()
	if s.ledger, err = ledgerclient.New(ledgerclient.Config{URL: s.file.Ledger.URL, Timeout: 2 * time.Second}); err != nil {
		return err
	}
	defer s.ledger.Close()
	if s.chaos, err = chaos.Open(s.fleet.Path()); err != nil {
		return err
	}
	l, err := s.leader(ctx, 0)
	if err != nil {
		return err
	}
	s.say("%s leads with token %d; %.0f calls a second", l.ID, l.Token, s.trial.Rate)
	calling, stop := context.WithCancel(ctx)
	var callers sync.WaitGroup
	var failed error
	callers.Go(func() {
		s.load, failed = load.Run(calling, load.Config{
			URLs: s.urls(), Rate: s.trial.Rate, Connections: 64, For: 24 * time.Hour, Timeout: s.trial.Patience, Calls: s.calls, Name: "caller-",
		})
	})
	err = do(ctx)
	stop()
	callers.Wait()
	if err == nil {
		err = failed
	}
	return err
}

// hold lets time pass.
func (s *trialRun) hold(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// await looks until it is seen.
func await(ctx context.Context, what string, seen func(context.Context) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%w within %v: %s", ErrNotSeen, patience, what))
	defer cancel()
	for !seen(ctx) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// leader waits for one that works, with a token above.
func (s *trialRun) leader(ctx context.Context, above fence.Token) (fleetclient.Leader, error) {
	var l fleetclient.Leader
	err := await(ctx, fmt.Sprintf("a leader with a token above %d", above), func(ctx context.Context) bool {
		for _, n := range s.file.Nodes {
			st, ok := s.status(ctx, n.URL)
			if ok && st.Role == api.Leader && st.Working && st.FenceToken > above {
				l = fleetclient.Leader{ID: st.NodeID, URL: n.URL, Token: st.FenceToken}
				return true
			}
		}
		return false
	})
	return l, err
}

func (s *trialRun) status(ctx context.Context, url string) (api.Status, bool) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	st, err := s.nodes.Status(ctx, url)
	return st, err == nil
}

// all waits until every node answers, and one of them leads.
func (s *trialRun) all(ctx context.Context) error {
	if err := await(ctx, "every node answering", func(ctx context.Context) bool {
		for _, n := range s.file.Nodes {
			if _, ok := s.status(ctx, n.URL); !ok {
				return false
			}
		}
		return true
	}); err != nil {
		return err
	}
	_, err := s.leader(ctx, 0)
	return err
}

// sealed waits until the ledger takes nothing below a token above that of the old
// leader, and returns who leads with it.
func (s *trialRun) sealed(ctx context.Context, old fence.Token) (fleetclient.Leader, error) {
	if err := await(ctx, "the successor's seal", func(ctx context.Context) bool {
		r, err := s.ledger.Resource(ctx, s.file.Group)
		return err == nil && r.Token > old
	}); err != nil {
		return fleetclient.Leader{}, err
	}
	return s.leader(ctx, old)
}

// take lets callers take numbers from one node, which they believe to lead. It fails if
// none was answered in time.
func (s *trialRun) take(ctx context.Context, from fleetclient.Leader, count int64, within time.Duration) error {
	s.loads++
	r, err := load.Run(ctx, load.Config{
		URLs: []string{from.URL}, Rate: 400, Connections: 8, Count: count, For: within, Timeout: s.trial.Patience,
		Patience: within, Calls: s.calls, Name: fmt.Sprintf("visitor-%d-", s.loads),
	})
	if err == nil && r.Calls == 0 {
		err = fmt.Errorf("%w: %s answered none of %d calls (%s)", ErrNotSeen, from.ID, count, r.FirstTrouble)
	}
	return err
}

// writes waits until the ledger takes a write again, and returns whose.
func (s *trialRun) writes(ctx context.Context) (l fleetclient.Leader, err error) {
	err = await(ctx, "a number from the leader", func(ctx context.Context) bool {
		var lerr error
		l, lerr = s.leader(ctx, 0)
		return lerr == nil && s.take(ctx, l, 1, time.Second) == nil
	})
	return l, err
}

// refusal waits until the ledger lists a stale write of a term that is over.
func (s *trialRun) refusal(ctx context.Context, node string, token fence.Token) (ledgerapi.Rejection, error) {
	var found ledgerapi.Rejection
	err := await(ctx, fmt.Sprintf("a stale write of %s with token %d", node, token), func(ctx context.Context) bool {
		page, err := s.ledger.Rejections(ctx, "", ledgerapi.MaxPage)
		if err != nil {
			return false
		}
		for _, r := range page.Items {
			if r.Resource == s.file.Group && r.Token == token && r.Holder == node && r.CurrentToken > token {
				found = r
				return true
			}
		}
		return false
	})
	return found, err
}

// down waits until a node no longer says that it leads with a token.
func (s *trialRun) down(ctx context.Context, id string, token fence.Token) error {
	return await(ctx, id+" stepping down", func(ctx context.Context) bool {
		st, ok := s.status(ctx, s.url(id))
		return ok && (st.Role != api.Leader || st.FenceToken != token)
	})
}

func now() clock.Instant { return clock.System().Now() }
