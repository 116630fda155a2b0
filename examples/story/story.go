package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/tenuretest"
)

const group = "billing"

// story has three candidates and the sink that they write to.
type story struct {
	*printer
	store  store.Store
	ttl    time.Duration
	sink   tenuretest.Sink
	events chan event
	log    *slog.Logger

	ctx     context.Context
	running sync.WaitGroup
	workers []*worker
	rows    []string // of the summary
}

// event is what a worker reports.
type event struct {
	*worker
	kind kind
	term *tenure.Term
	at   time.Time
	err  error
}

type kind string

const (
	began   kind = "lead"             // the sink is sealed and work begins
	stopped kind = "stop working"     // the work function has returned
	checked kind = "check its term"   // and is paused before the write
	refused kind = "be refused"       // by the sink
	failed  kind = "fail to campaign" // its node is closed
)

func newStory(store store.Store, ttl time.Duration, p *printer) *story {
	return &story{
		printer: p, store: store, ttl: ttl,
		events: make(chan event, 64), // more than the story has
		log:    slog.New(slog.DiscardHandler),
	}
}

// worker is one process: a node, and the work that it does while it leads.
type worker struct {
	story *story
	id    string
	node  *tenuretest.Node
	// To pause the whole process, Node.Pause pauses the node, and these channels pause the work
	// between its check and its write.
	pause, resume chan struct{}
}

func (s *story) start(id string) error {
	node, err := tenuretest.NewNode(s.store, lease.Config{
		Candidate: tenure.Candidate{ID: id},
		Scope:     store.Scope{group},
		Timing:    lease.Timing{TTL: s.ttl},
		Log:       s.log,
	})
	if err != nil {
		return err
	}
	w := &worker{story: s, id: id, node: node, pause: make(chan struct{}), resume: make(chan struct{})}
	s.workers = append(s.workers, w)
	s.running.Go(func() {
		err := tenure.Lead(s.ctx, node.Elector(group), w.work, tenure.WithSinks(&s.sink), tenure.WithLog(s.log))
		w.report(failed, nil, err)
	})
	return nil
}

func (w *worker) report(k kind, term *tenure.Term, err error) {
	select {
	case w.story.events <- event{w, k, term, time.Now(), err}:
	default:
	}
}

// work writes to the sink at intervals.
func (w *worker) work(ctx context.Context, term *tenure.Term) error {
	s := w.story
	w.report(began, term, nil)
	defer func() { w.report(stopped, term, context.Cause(term.Context())) }()
	tick := time.NewTicker(s.ttl / 20)
	defer tick.Stop()
	for {
		if err := term.Check(); err != nil {
			return err
		}
		select {
		case <-w.pause:
			w.report(checked, term, nil)
			<-w.resume
		default:
		}
		if err := s.sink.Write(context.WithoutCancel(ctx), term.Stamp(), w.id); err != nil {
			w.report(refused, term, err)
			return errors.Join(err, term.Check())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// expect waits for the next event of a kind, from one worker or, if from is nil, from any.
func (s *story) expect(k kind, from *worker) (event, error) {
	timeout := time.After(3*s.ttl + time.Second)
	for {
		select {
		case e := <-s.events:
			if e.kind == k && (from == nil || e.worker == from) {
				return e, nil
			}
		case <-timeout:
			who := "any node"
			if from != nil {
				who = from.id
			}
			return event{}, fmt.Errorf("timeout: waited for %s to %s", who, k)
		case <-s.ctx.Done():
			return event{}, context.Cause(s.ctx)
		}
	}
}

// workOn lets all workers run for one TTL.
func (s *story) workOn() error {
	select {
	case <-time.After(s.ttl):
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// run runs the story. Its error is the first thing that did not happen as expected.
func (s *story) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	s.ctx = ctx
	s.print("A leader election, step by step. Sessions have a TTL of %v.\n", s.ttl)
	leader, err := s.election()
	for _, step := range []func(event) (event, error){s.crash, s.pause, s.transfer} {
		if err == nil {
			err = s.workOn()
		}
		if err == nil {
			leader, err = step(leader)
		}
	}
	if err == nil {
		err = s.workOn()
	}
	cancel()
	for _, w := range s.workers {
		w.node.Resume()
		closing, done := context.WithTimeout(context.Background(), 2*s.ttl)
		_ = w.node.Close(closing) // the one that crashed is closed already
		done()
	}
	s.running.Wait()
	if err != nil {
		return err
	}
	s.say("all nodes stop")
	return s.summary()
}

func (s *story) election() (event, error) {
	s.say("node-1, node-2 and node-3 campaign for group %q", group)
	begin := time.Now()
	for _, id := range []string{"node-1", "node-2", "node-3"} {
		if err := s.start(id); err != nil {
			return event{}, err
		}
	}
	leader, err := s.expect(began, nil)
	if err != nil {
		return event{}, err
	}
	s.leads(leader, "it seals the sink and works")
	s.row("first election", event{}, leader, begin)
	return leader, nil
}

func (s *story) crash(leader event) (event, error) {
	s.say("%s crashes; its session expires after the TTL", leader.id)
	crashed := time.Now()
	leader.node.Crash()
	next, err := s.expect(began, nil)
	if err != nil {
		return event{}, err
	}
	s.leads(next, fmt.Sprintf("%v after the crash, with a larger token", round(next.at.Sub(crashed))))
	s.row("crash of "+leader.id, leader, next, crashed)
	s.say("%s starts again and is the last candidate", leader.id)
	return next, s.start(leader.id)
}

func (s *story) pause(leader event) (event, error) {
	select {
	case leader.worker.pause <- struct{}{}:
	case <-time.After(s.ttl):
		return event{}, fmt.Errorf("%s does not work", leader.id)
	}
	defer close(leader.resume)
	if _, err := s.expect(checked, leader.worker); err != nil {
		return event{}, err
	}
	leader.node.Pause()
	paused := time.Now()
	s.say("%s checks its term: it leads. Before it can write, the whole process is paused", leader.id)
	next, err := s.expect(began, nil)
	if err != nil {
		return event{}, err
	}
	s.leads(next, fmt.Sprintf("%v after the pause began; it seals the sink", round(next.at.Sub(paused))))
	s.row("pause of "+leader.id, leader, next, paused)
	s.say("%s resumes, still believes that it leads, and makes the write that it had checked", leader.id)
	leader.resume <- struct{}{} // the work resumes before the node
	no, err := s.expect(refused, leader.worker)
	if err != nil {
		return event{}, err
	}
	var stale *fence.StaleError
	if !errors.As(no.err, &stale) {
		return event{}, fmt.Errorf("the sink refused the write for another reason: %w", no.err)
	}
	s.say("%s: the write has token %d, the sink has seen token %d", s.paint(red, "refused"), stale.Stamp.Token, stale.Mark.Token)
	leader.node.Resume()
	if _, err := s.expect(stopped, leader.worker); err != nil {
		return event{}, err
	}
	s.say("%s checks its term again (%v) and becomes a candidate", leader.id, errors.Unwrap(leader.term.Check()))
	return next, nil
}

func (s *story) transfer(leader event) (event, error) {
	to := s.workers[len(s.workers)-1] // the one that was started again
	if to == leader.worker {
		to = s.workers[1]
	}
	s.say("%s hands over to %s: it stops working first", leader.id, to.id)
	if err := leader.term.TransferTo(s.ctx, to.id); err != nil {
		return event{}, err
	}
	last, err := s.expect(stopped, leader.worker)
	if err != nil {
		return event{}, err
	}
	if !errors.Is(last.err, tenure.ErrTransferred) {
		return event{}, fmt.Errorf("%s stopped, but not to hand over: %w", leader.id, last.err)
	}
	next, err := s.expect(began, to)
	if err != nil {
		return event{}, err
	}
	if next.at.Before(last.at) {
		return event{}, fmt.Errorf("%s began %v before %s had stopped", to.id, last.at.Sub(next.at), leader.id)
	}
	s.leads(next, fmt.Sprintf("%v after %s had stopped", round(next.at.Sub(last.at)), leader.id))
	s.row("transfer by "+leader.id, leader, next, last.at)
	return next, nil
}

func (s *story) leads(e event, how string) {
	s.say("%s: %s", s.paint(bold, fmt.Sprintf("%s leads with token %d", e.id, e.term.Token())), how)
}

func (s *story) row(what string, from, to event, since time.Time) {
	who, tokens := to.id, to.term.Token().String()
	if from.worker != nil {
		who, tokens = from.id+" to "+who, from.term.Token().String()+" to "+tokens
	}
	s.rows = append(s.rows, fmt.Sprintf("%s\t%s\t%s\t%v\n", what, who, tokens, round(to.at.Sub(since))))
}

// summary prints the summary, and checks that tokens in the sink only rose.
func (s *story) summary() error {
	var table strings.Builder
	t := tabwriter.NewWriter(&table, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprint(t, "what happened\tleader\ttoken\twithout a leader\n", strings.Join(s.rows, ""))
	_ = t.Flush()
	s.print("\n%s", table.String())
	written, no := s.sink.Writes(), s.sink.Refused()
	s.print("The sink accepted %d writes and refused %d.", len(written), len(no))
	highest := fence.Token(0)
	for _, w := range written {
		if w.Stamp.Token < highest {
			return fmt.Errorf("the sink accepted token %d after token %d", w.Stamp.Token, highest)
		}
		highest = w.Stamp.Token
	}
	if len(no) != 1 {
		return fmt.Errorf("the sink refused %d writes, want the one of the paused leader", len(no))
	}
	s.print(`
Read next:
  go doc github.com/tenurehq/tenure              what is guaranteed, and what is not
  go doc github.com/tenurehq/tenure/fence        how a resource refuses a stale leader
  go doc github.com/tenurehq/tenure/tenuretest   the same as a test, in fifteen lines
  docs/guarantees.md                             the guarantees by name, and their tests`)
	return nil
}

// round rounds a duration for display.
func round(d time.Duration) time.Duration {
	if d > 100*time.Millisecond {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
