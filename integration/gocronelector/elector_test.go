package gocronelector_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/integration/gocronelector"
	"github.com/tenurehq/tenure/tenuretest"
)

// process is a candidate with a scheduler of its own.
type process struct {
	*tenuretest.Node
	elector *gocronelector.Elector
	stop    func() // ends Run and waits for it
}

// start runs a scheduler with one job, every second.
func start(t *testing.T, k *tenuretest.Kit, id string, job func(context.Context, *tenure.Term) error, opts ...tenure.Option) process {
	t.Helper()
	p := process{Node: k.Node(id)}
	p.elector = gocronelector.New(p.Node.Elector("reports"))
	s, err := gocron.NewScheduler(gocron.WithDistributedElector(p.elector))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewJob(gocron.DurationJob(time.Second), p.elector.Task(job), gocron.WithSingletonMode(gocron.LimitModeReschedule)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := p.elector.Run(ctx, append(opts, tenure.WithLog(k.Log()))...); !errors.Is(err, context.Canceled) {
			t.Errorf("Run of %s: %v", id, err)
		}
	}()
	p.stop = func() { cancel(); <-done }
	s.Start()
	t.Cleanup(func() {
		p.stop()
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Only the leader runs the job, with its own stamp. After a crash the next leader does, with a
// larger token.
func TestLeaderRuns(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		var sink tenuretest.Sink
		var runs [2]atomic.Int32
		job := func(i int) func(context.Context, *tenure.Term) error {
			return func(ctx context.Context, term *tenure.Term) error {
				runs[i].Add(1)
				return sink.Write(ctx, term.Stamp(), term.Candidate().ID)
			}
		}
		a := start(t, k, "a", job(0), tenure.WithSinks(&sink))
		k.Settle()
		b := start(t, k, "b", job(1), tenure.WithSinks(&sink))
		k.Advance(5*time.Second + 500*time.Millisecond)
		if runs[0].Load() != 5 || runs[1].Load() != 0 {
			t.Fatalf("in 5 s the leader ran %d times, the other %d times", runs[0].Load(), runs[1].Load())
		}
		if a.elector.IsLeader(t.Context()) != nil || !errors.Is(b.elector.IsLeader(t.Context()), gocronelector.ErrNotLeader) {
			t.Error("IsLeader is wrong")
		}
		first := k.Leader("reports").Token
		a.stop()
		k.Advance(5 * time.Second)
		if now := k.Leader("reports"); now.Candidate.ID != "b" || now.Token <= first {
			t.Errorf("after a stopped: %+v", now)
		}
		if runs[0].Load() != 5 || runs[1].Load() == 0 {
			t.Errorf("after a stopped the runs are %d and %d", runs[0].Load(), runs[1].Load())
		}
	})
}

// A leader that is cut off loses its term: the context of its job ends with the reason, and what it
// writes afterwards is refused.
func TestDeposed(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		var sink tenuretest.Sink
		began, ended := make(chan struct{}), make(chan error, 1)
		late := make(chan error, 1)
		a := start(t, k, "a", func(ctx context.Context, term *tenure.Term) error {
			if term.Candidate().ID != "a" || ctx.Err() != nil {
				t.Errorf("the job of a has the term of %s, %v", term.Candidate().ID, ctx.Err())
			}
			close(began)
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
			ended <- context.Cause(ctx)
			time.Sleep(30 * time.Second) // a job that does not return at once
			late <- sink.Write(context.WithoutCancel(ctx), term.Stamp(), "late")
			return ctx.Err()
		}, tenure.WithSinks(&sink))
		k.Settle()
		var next atomic.Int32
		start(t, k, "b", func(ctx context.Context, term *tenure.Term) error {
			next.Add(1)
			return sink.Write(ctx, term.Stamp(), "b")
		}, tenure.WithSinks(&sink))
		<-began
		a.Partition()
		k.Advance(20 * time.Second)
		select {
		case err := <-ended:
			if !errors.Is(err, tenure.ErrExpired) {
				t.Errorf("the job ended with %v", err)
			}
		default:
			t.Error("the job of the deposed leader was not cancelled")
		}
		if next.Load() == 0 {
			t.Error("the next leader does not run its job")
		}
		if a.elector.IsLeader(t.Context()) == nil {
			t.Error("the deposed leader says that it leads")
		}
		k.Advance(20 * time.Second)
		if err := <-late; !errors.Is(err, fence.ErrRefused) {
			t.Errorf("the late write of the deposed leader: %v", err)
		}
		a.Heal()
	})
}

// A leader whose process is stopped runs no job once its trust has ended, though nothing in it has
// noticed yet.
func TestPaused(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		var runs atomic.Int32
		a := start(t, k, "a", func(context.Context, *tenure.Term) error {
			runs.Add(1)
			return nil
		})
		k.Advance(3 * time.Second)
		a.Pause()
		k.Advance(20 * time.Second)
		before := runs.Load()
		k.Advance(5 * time.Second)
		if before == 0 || runs.Load() != before {
			t.Errorf("%d runs, and %d after the end of trust", before, runs.Load()-before)
		}
		if err := a.elector.IsLeader(t.Context()); err == nil {
			t.Error("it says that it leads")
		}
		a.Resume()
	})
}

// The group is given up only after the running job has returned.
func TestHandover(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		began := make(chan struct{})
		var running atomic.Int32
		a := start(t, k, "a", func(ctx context.Context, _ *tenure.Term) error {
			running.Add(1)
			defer running.Add(-1)
			close(began)
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
				t.Error("the job was not cancelled")
			}
			time.Sleep(3 * time.Second)
			return nil
		})
		k.Settle()
		var next atomic.Int32
		start(t, k, "b", func(context.Context, *tenure.Term) error {
			if running.Load() != 0 {
				t.Error("both jobs run")
			}
			next.Add(1)
			return nil
		})
		<-began
		a.stop()
		if running.Load() != 0 {
			t.Error("Run returned before the job")
		}
		k.Advance(5 * time.Second)
		if next.Load() == 0 {
			t.Error("the next leader does not run its job")
		}
	})
}

// A run that begins when the term is over does not reach the job.
func TestNotLeader(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		e := gocronelector.New(k.Node("a").Elector("reports"))
		s, err := gocron.NewScheduler() // it does not ask the elector
		if err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		if _, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), e.Task(func(context.Context, *tenure.Term) error {
			t.Error("the job runs without a term")
			return nil
		}), gocron.WithEventListeners(gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { failed <- err }))); err != nil {
			t.Fatal(err)
		}
		s.Start()
		if err := <-failed; !errors.Is(err, gocronelector.ErrNotLeader) {
			t.Error(err)
		}
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
}
