package gocronelector

import (
	"context"
	"errors"
	"sync"

	"github.com/go-co-op/gocron/v2"

	"github.com/tenurehq/tenure"
)

// ErrNotLeader: this process does not lead, so the run is skipped.
var ErrNotLeader = errors.New("gocronelector: this process does not lead")

// Elector is a gocron.Elector. Its methods are safe for concurrent use.
type Elector struct {
	elector tenure.Elector

	mu   sync.Mutex
	term *tenure.Term   // nil: it does not lead
	jobs sync.WaitGroup // of the term
}

var _ gocron.Elector = (*Elector)(nil)

// New returns an elector for a scheduler. It campaigns while Run runs.
func New(e tenure.Elector) *Elector { return &Elector{elector: e} }

// Run campaigns and leads until ctx ends. It returns what tenure.Lead returns. Shut the scheduler
// down afterwards, or with it.
func (e *Elector) Run(ctx context.Context, opts ...tenure.Option) error {
	return tenure.Lead(ctx, e.elector, func(ctx context.Context, term *tenure.Term) error {
		e.set(term)
		<-ctx.Done()
		e.set(nil)
		e.jobs.Wait()
		return context.Cause(ctx)
	}, opts...)
}

func (e *Elector) set(term *tenure.Term) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term = term
}

// IsLeader implements gocron.Elector.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leads()
}

// leads returns why this process does not lead, or nil. e.mu is held.
func (e *Elector) leads() error {
	if e.term == nil {
		return ErrNotLeader
	}
	return e.term.Check()
}

// Task makes a task of a job that only a leader may run. The job's context ends with the term, with
// its cause, or with the scheduler. The job gets the term that it runs in: use term.Stamp for its
// writes. If the term has ended since gocron asked, the job does not run, and the run fails with
// ErrNotLeader or the error of Term.Check.
func (e *Elector) Task(job func(ctx context.Context, term *tenure.Term) error) gocron.Task {
	return gocron.NewTask(func(ctx context.Context) error {
		e.mu.Lock()
		term, err := e.term, e.leads()
		if err == nil {
			e.jobs.Add(1)
		}
		e.mu.Unlock()
		if err != nil {
			return err
		}
		defer e.jobs.Done()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(term.Context(), func() { cancel(context.Cause(term.Context())) })()
		return job(ctx, term)
	})
}
