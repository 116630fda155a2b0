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
	"github.com/tenurehq/tenure/tenuretest"
)

const group = "billing"

// story is three candidates, the sink they write to, and what they report.
type story struct {
	*narrator
	store lease.Store
	ttl   time.Duration
	sink  tenuretest.Sink
	news  chan news
	log   *slog.Logger

	ctx     context.Context
	running sync.WaitGroup
	nodes   []*worker
	rows    []row
}

// news is what a worker reports to the story.
type news struct {
	*worker
	kind kind
	term *tenure.Term
	at   time.Time
	err  error
}

type kind string

const (
	began   kind = "lead"             // the sink is sealed and work begins
	stopped kind = "stop working"     // work has returned
	checked kind = "check its term"   // and is held before the write
	refused kind = "be refused"       // by the sink
	failed  kind = "fail to campaign" // its node is gone
)

// row is one line of the summary.
type row struct {
	what, who, tokens string
	gap               time.Duration
}

func newStory(store lease.Store, ttl time.Duration, n *narrator) *story {
	return &story{
		narrator: n, store: store, ttl: ttl,
		news: make(chan news, 64), // more than a story has
		log:  slog.New(slog.DiscardHandler),
	}
}

// worker is one process: a node, and the work that it does when it leads.
type worker struct {
	story *story
	id    string
	node  *tenuretest.Node
	// A pause of the whole process: the node's part is Node.Pause, the work's
	// part is to stand still here, between its check and its write.
	pause  chan struct{}
	resume chan struct{}
}

func (s *story) start(id string) error {
	node, err := tenuretest.NewNode(s.store, lease.Config{
		Candidate: tenure.Candidate{ID: id},
		Scope:     lease.Scope{group},
		Timing:    lease.Timing{TTL: s.ttl},
		Log:       s.log,
	})
	if err != nil {
		return err
	}
	w := &worker{story: s, id: id, node: node, pause: make(chan struct{}), resume: make(chan struct{})}
	s.nodes = append(s.nodes, w)
	s.running.Go(func() {
		err := tenure.Lead(s.ctx, node.Elector(group), w.work, tenure.WithSinks(&s.sink), tenure.WithLog(s.log))
		w.report(failed, nil, err)
	})
	return nil
}

func (w *worker) report(k kind, term *tenure.Term, err error) {
	select {
	case w.story.news <- news{w, k, term, time.Now(), err}:
	default:
	}
}

// work writes a line to the sink now and then.
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
		if err := s.sink.Write(context.WithoutCancel(ctx), term.Stamp(0), w.id); err != nil {
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

// expect waits for the next news of a kind, from one worker or from anybody.
func (s *story) expect(k kind, from *worker) (news, error) {
	patience := 3*s.ttl + time.Second
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		select {
		case n := <-s.news:
			if n.kind == k && (from == nil || n.worker == from) {
				return n, nil
			}
		case <-timeout.C:
			who := "anybody"
			if from != nil {
				who = from.id
			}
			return news{}, fmt.Errorf("waited %v for %s to %s", patience, who, k)
		case <-s.ctx.Done():
			return news{}, context.Cause(s.ctx)
		}
	}
}

// calm lets everybody work for a while.
func (s *story) calm() error {
	select {
	case <-time.After(s.ttl):
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// tell tells the story, and returns what did not happen as expected.
func (s *story) tell(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	s.ctx = ctx
	err := s.scenes()
	if err == nil {
		s.say("the end: everybody stops")
	}
	cancel()
	for _, w := range s.nodes {
		w.node.Resume()
		closing, done := context.WithTimeout(context.Background(), 2*s.ttl)
		_ = w.node.Close(closing) // the one that crashed is closed already
		done()
	}
	s.running.Wait()
	if err != nil {
		return err
	}
	return s.summary()
}

func (s *story) scenes() error {
	s.print("An election, told as it happens. Sessions have a TTL of %v here.\n", s.ttl)
	first, err := s.election()
	if err != nil {
		return err
	}
	second, err := s.crash(first)
	if err != nil {
		return err
	}
	third, err := s.zombie(second)
	if err != nil {
		return err
	}
	return s.baton(third)
}

func (s *story) election() (news, error) {
	s.say("node-1, node-2 and node-3 stand for group %q", group)
	begin := time.Now()
	for _, id := range []string{"node-1", "node-2", "node-3"} {
		if err := s.start(id); err != nil {
			return news{}, err
		}
	}
	leader, err := s.expect(began, nil)
	if err != nil {
		return news{}, err
	}
	s.leads(leader, "it seals the sink, and works")
	s.row("first election", news{}, leader, begin)
	return leader, s.calm()
}

func (s *story) crash(leader news) (news, error) {
	s.say("%s crashes, without a word; what it led is its own until its session expires", leader.id)
	crashed := time.Now()
	leader.node.Crash()
	next, err := s.expect(began, nil)
	if err != nil {
		return news{}, err
	}
	s.leads(next, fmt.Sprintf("%v after the crash, and with a larger token", tidy(next.at.Sub(crashed))))
	s.row("crash of "+leader.id, leader, next, crashed)
	s.say("%s is started again, and stands at the end of the line", leader.id)
	if err := s.start(leader.id); err != nil {
		return news{}, err
	}
	return next, s.calm()
}

func (s *story) zombie(leader news) (news, error) {
	select {
	case leader.pause <- struct{}{}:
	case <-time.After(s.ttl):
		return news{}, fmt.Errorf("%s does not work", leader.id)
	}
	defer close(leader.resume)
	if _, err := s.expect(checked, leader.worker); err != nil {
		return news{}, err
	}
	leader.node.Pause()
	paused := time.Now()
	s.say("%s checks its term: it leads. Before it can write, the whole process is paused", leader.id)
	next, err := s.expect(began, nil)
	if err != nil {
		return news{}, err
	}
	s.leads(next, fmt.Sprintf("%v after the pause began; it seals the sink", tidy(next.at.Sub(paused))))
	s.row("pause of "+leader.id, leader, next, paused)
	// Its work is the first to wake up.
	s.say("%s wakes up, still a leader as far as it knows, and makes the write that it had checked", leader.id)
	leader.resume <- struct{}{}
	no, err := s.expect(refused, leader.worker)
	if err != nil {
		return news{}, err
	}
	var stale *fence.StaleError
	if !errors.As(no.err, &stale) {
		return news{}, fmt.Errorf("the sink refused the write, but for another reason: %w", no.err)
	}
	s.say("%s: the write carries token %d, the sink has seen token %d", s.paint(red, "refused"), stale.Stamp.Token, stale.Mark.Token)
	leader.node.Resume()
	if _, err := s.expect(stopped, leader.worker); err != nil {
		return news{}, err
	}
	s.say("%s looks at the clock (%v), and stands in line again", leader.id, errors.Unwrap(leader.term.Check()))
	return next, s.calm()
}

func (s *story) baton(leader news) error {
	to := s.nodes[len(s.nodes)-1] // the one that was started again
	if to == leader.worker {
		to = s.nodes[1]
	}
	s.say("%s passes the baton to %s: it stops working first", leader.id, to.id)
	if err := leader.term.TransferTo(s.ctx, to.id); err != nil {
		return err
	}
	last, err := s.expect(stopped, leader.worker)
	if err != nil {
		return err
	}
	if !errors.Is(last.err, tenure.ErrTransferred) {
		return fmt.Errorf("%s stopped, but not to hand over: %w", leader.id, last.err)
	}
	next, err := s.expect(began, to)
	if err != nil {
		return err
	}
	if next.at.Before(last.at) {
		return fmt.Errorf("%s began %v before %s had stopped", to.id, last.at.Sub(next.at), leader.id)
	}
	s.leads(next, fmt.Sprintf("%v after %s had stopped", tidy(next.at.Sub(last.at)), leader.id))
	s.row("baton of "+leader.id, leader, next, last.at)
	return s.calm()
}

func (s *story) leads(n news, how string) {
	s.say("%s: %s", s.paint(bold, fmt.Sprintf("%s leads with token %d", n.id, n.term.Token())), how)
}

func (s *story) row(what string, from, to news, since time.Time) {
	r := row{what: what, who: to.id, tokens: to.term.Token().String(), gap: to.at.Sub(since)}
	if from.worker != nil {
		r.who = from.id + " to " + to.id
		r.tokens = fmt.Sprintf("%d to %d", from.term.Token(), to.term.Token())
	}
	s.rows = append(s.rows, r)
}

// summary checks what the sink was written against what was told.
func (s *story) summary() error {
	var table strings.Builder // it always has room
	t := tabwriter.NewWriter(&table, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "what happened\tleader\ttoken\twithout a leader")
	for _, r := range s.rows {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%v\n", r.what, r.who, r.tokens, tidy(r.gap))
	}
	_ = t.Flush()
	s.print("\n%s", table.String())
	written, no := s.sink.Writes(), s.sink.Refused()
	s.print("The sink took %d writes, and refused %d.", len(written), len(no))
	highest := fence.Token(0)
	for _, w := range written {
		if w.Stamp.Token < highest {
			return fmt.Errorf("the sink took token %d after token %d", w.Stamp.Token, highest)
		}
		highest = w.Stamp.Token
	}
	if len(no) != 1 {
		return fmt.Errorf("the sink refused %d writes, want the one of the zombie", len(no))
	}
	s.print(`
Read next:
  go doc github.com/tenurehq/tenure              what is guaranteed, and what is not
  go doc github.com/tenurehq/tenure/fence        how a resource refuses a stale leader
  go doc github.com/tenurehq/tenure/tenuretest   this story as a test, in fifteen lines
  docs/guarantees.md                             the promises by name, and how they are tested`)
	return nil
}

// tidy rounds for people.
func tidy(d time.Duration) time.Duration {
	if d > 100*time.Millisecond {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
