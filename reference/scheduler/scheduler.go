package scheduler

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	"github.com/tenurehq/tenure/reference/httpclient"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/wait"
)

// Checkpoint is the name of the checkpoint with the Cursor.
const Checkpoint = "scheduler"

// Cursor counts what all leaders of a group have done. It is written with each tick.
type Cursor struct {
	// TickMS is the instant of the last tick.
	TickMS  int64  `json:"tick_ms"`
	Ticks   uint64 `json:"ticks"`
	Missed  int64  `json:"ticks_missed"`
	Fired   uint64 `json:"fired"`
	Skipped uint64 `json:"skipped"`
}

// Scheduler ticks while its node leads, and keeps a window of jobs ready while it does not.
type Scheduler struct {
	cfg      Config
	client   *http.Client
	counters *counters
	// changed is buffered by one.
	changed chan struct{}

	mu   sync.Mutex
	warm *window
}

// New returns a scheduler. It does nothing yet.
func New(cfg Config) (*Scheduler, error) {
	cfg = cfg.withDefaults()
	cfg.Workers = slices.Clone(cfg.Workers)
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Scheduler{cfg: cfg, client: httpclient.New(2*time.Second, 4), counters: &counters{metrics: cfg.Metrics}, changed: make(chan struct{}, 1)}, nil
}

// Close closes idle connections to workers.
func (s *Scheduler) Close() { s.client.CloseIdleConnections() }

// Status returns the current state.
func (s *Scheduler) Status() Status {
	s.counters.mu.Lock()
	defer s.counters.mu.Unlock()
	return s.counters.s
}

// Changed tells the scheduler that the leader wrote a job or the standing orders. Otherwise it
// sees them at the next tick.
func (s *Scheduler) Changed() { wait.Signal(s.changed) }

// Preload reads the window ahead, so that a new leader has it already.
func (s *Scheduler) Preload(ctx context.Context) error {
	s.mu.Lock()
	known := s.warm
	s.mu.Unlock()
	head, err := s.look(ctx)
	if err != nil {
		return err
	}
	// The window is read again when less than half of it is left.
	if known == nil || known.version != head.Version || known.covered < head.NowMS+s.cfg.Window.Milliseconds()/2 {
		if known, _, err = s.read(ctx, head.NowMS); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.warm = known
	s.mu.Unlock()
	s.counters.change(func(st *Status) {
		st.JobsPending, st.WindowJobs, st.WindowMS = head.Total, len(known.jobs), known.covered
	})
	return nil
}

// look reads the version of the jobs and the time.
func (s *Scheduler) look(ctx context.Context) (ledgerapi.Jobs, error) {
	head, err := s.cfg.Ledger.Jobs(ctx, s.cfg.Resource, 1, "", 1)
	if errors.Is(err, ledgerapi.ErrNotFound) {
		// The resource does not exist yet.
		return ledgerapi.Jobs{}, nil
	}
	return head, err
}

// read reads the window ahead of an instant.
func (s *Scheduler) read(ctx context.Context, now int64) (*window, ledgerapi.Jobs, error) {
	before := now + s.cfg.Window.Milliseconds()
	var all []ledgerapi.Job
	var page ledgerapi.Jobs
	bytes := 0
	for after := ""; ; after = page.Next {
		next, err := s.cfg.Ledger.Jobs(ctx, s.cfg.Resource, before, after, min(pageItems, s.cfg.WindowJobs-len(all)))
		if errors.Is(err, ledgerapi.ErrNotFound) {
			next, err = ledgerapi.Jobs{}, nil
		}
		if err != nil {
			return nil, page, err
		}
		if after != "" && next.Version != page.Version {
			// A job was written between two pages and may be in neither. The window ends with
			// the first page.
			return newWindow(all, before, true, page.Version, page.Total), page, nil
		}
		page = next
		for _, j := range page.Items {
			bytes += len(j.Key) + len(j.Schedule) + len(j.Payload)
			if bytes > windowBytes && len(all) > 0 {
				return newWindow(all, before, true, page.Version, page.Total), page, nil
			}
			all = append(all, j)
		}
		if page.Next == "" || len(all) >= s.cfg.WindowJobs {
			return newWindow(all, before, page.Next != "", page.Version, page.Total), page, nil
		}
	}
}

// Lead ticks until ctx ends, and sends firings to the workers. It calls loaded, if given, once
// the first tick can be written. When it returns, nothing of it runs any more and its last write
// has its outcome.
//
// Before it returns, it records with last what the workers have acknowledged, so that the next
// leader does not send it again. last must also write after the leader has ended its term
// itself, as fencedwriter.TermWriter.WriteLast does. Requests to workers have a second to end.
//
// It returns nil when ctx ended. Otherwise it returns why it had to stop: a write or an order
// was refused because another node leads, or the term is over.
func (s *Scheduler) Lead(ctx context.Context, w, last fencedwriter.Writer, stamp fence.Stamp, loaded func()) error {
	t := s.newTerm(w, stamp)
	if err := t.load(ctx); err != nil {
		return nil // ctx ended
	}
	s.counters.change(func(st *Status) { st.Leading, st.Token = true, stamp.Token })
	defer s.counters.change(func(st *Status) { st.Leading, st.Outbox = false, 0 })
	if loaded != nil {
		loaded()
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	sent := make(chan error, 1)
	go func() {
		err := t.d.run(ctx)
		if err != nil {
			stop(err)
		}
		sent <- err
	}()
	err := t.ticks(ctx)
	stop(err)
	err = errors.Join(err, <-sent)
	if !errors.Is(err, fence.ErrRefused) {
		t.leave(ctx, last)
	}
	return err
}
