package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/sequencer"
)

// leading is the work of one term, while it takes calls.
type leading struct {
	term     *tenure.Term
	pen      *fencedwriter.Pen
	seq      *sequencer.Sequencer
	record   *recorder
	compact  *compaction
	answered atomic.Bool
}

// found is called for each call of a client that was answered; only the first counts.
func (l *leading) found() {
	if !l.answered.Load() && l.answered.CompareAndSwap(false, true) {
		l.record.reached(api.PhaseFound)
	}
}

// work is what a node does while it leads. The ledger is sealed already.
func (n *Node) work(ctx context.Context, term *tenure.Term) error {
	n.reached(api.MomentSealed)
	n.sink.begin()
	b := n.term.Load()
	p := n.newPen(term)
	past, err := n.load(ctx, p)
	if err == nil {
		err = n.skip(ctx, p, &past)
	}
	if err != nil {
		n.sink.sealed(err)
		return err
	}
	n.unsealed.Store(0)
	l := &leading{term: term, pen: p, record: n.newRecorder(b, p, past)}
	w := noticed{p, l.record}
	l.seq = sequencer.New(sequencer.Config{
		Writer: w, Name: api.Sequence, Token: term.Token(), Last: past.lastSeq, Read: n.readSequence,
		Timeout: n.cfg.WriteTimeout, Batch: n.cfg.Batch, Wrote: n.metrics.wrote,
	})
	l.compact = n.newCompaction(p)

	// Whichever part ends first ends all: half a leader is none.
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var parts sync.WaitGroup
	part := func(name string, run func(context.Context) error) {
		parts.Go(func() {
			if err := run(work); err != nil && work.Err() == nil {
				stop(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	part("sequencer", l.seq.Run)
	part("scheduler", func(ctx context.Context) error { return n.scheduler.Lead(ctx, w, last{p}, term.Stamp(0), func() {}) })
	part("compaction", l.compact.run)
	part("failover record", l.record.run)
	part("ledger", n.watchSink)
	l.record.reached(api.PhaseLoad)
	n.leading.Store(l)
	n.cfg.Log.Info("leads", "group", term.Group(), "token", term.Token(), "seq", past.lastSeq)

	<-work.Done()
	n.leading.Store(nil)
	parts.Wait()
	n.know(l.seq.Last())
	p.Close() // callers of /jobs and the like write with it too, and are not waited for elsewhere
	cause := context.Cause(work)
	if err := term.Check(); err != nil {
		cause = err // why the term ended says more than that the process was asked to
	}
	n.cfg.Log.Info("stopped", "group", term.Group(), "token", term.Token(), "cause", cause)
	n.bequeath(ctx, l, cause)
	return cause
}

func (n *Node) newPen(term *tenure.Term) *fencedwriter.Pen {
	cfg := fencedwriter.Config{
		Ledger: n.ledger, Resource: n.cfg.Group, Term: term, Holder: n.cfg.ID, Timeout: n.cfg.WriteTimeout, Host: n.host,
		Done: func(at clock.Instant, took time.Duration, err error) {
			n.trace(Event{Kind: api.TraceDone, At: at, End: at.Add(took), Token: term.Token(), What: outcome(err)})
			n.sink.saw(err)
			n.sink.wrote(err)
			n.metrics.attempted(took, err)
			if errors.Is(err, fence.ErrRefused) {
				n.cfg.Log.Warn("write refused: stepping down", "group", term.Group(), "token", term.Token(), "error", err)
			}
		},
	}
	cfg.Between = func() { n.reached(api.MomentWrite) }
	cfg.Attempted = func(at clock.Instant, token fence.Token, writes []ledgerapi.Write) {
		n.trace(Event{Kind: api.TraceAttempt, At: at, Token: token, Writes: writes})
	}
	return fencedwriter.New(cfg)
}

// last writes what a leader leaves behind.
type last struct{ *fencedwriter.Pen }

func (l last) Write(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	return l.WriteLast(ctx, writes...)
}

// noticed is a writer whose first success ends the phase in which a new leader warms
// up.
type noticed struct {
	fencedwriter.Writer
	record *recorder
}

func (w noticed) Write(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	a, err := w.Writer.Write(ctx, writes...)
	if err == nil {
		w.record.reached(api.PhaseWarm)
	}
	return a, err
}

// watchSink ends the work when the ledger stays out of reach.
func (n *Node) watchSink(ctx context.Context) error {
	every := max(n.cfg.SinkPatience/10, 10*time.Millisecond)
	for {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return nil
		}
		if err := errors.Join(n.sink.health(), n.sink.writable()); err != nil {
			return err
		}
	}
}

// past is what the leaders before have left, read after the seal.
type past struct {
	lastSeq  uint64
	handover *api.Handover
	// lastWrite is the last write of the leader before, and offset what turns the
	// ledger's wall clock into the host's.
	lastWrite int64
	offset    time.Duration
	began     clock.Instant // the first attempt to write of this leader
	atMS      int64
}

// opening is what a new leader writes first: who leads, as the ledger knows it, and
// proof that it takes this leader's writes.
type opening struct {
	Node    string `json:"node"`
	Address string `json:"address"`
}

// load reads what can have changed since the standby looked, all at once.
func (n *Node) load(ctx context.Context, p *fencedwriter.Pen) (past, error) {
	var out past
	var seq ledgerapi.Sequence
	var handover, ticked ledgerapi.Checkpoint
	var answer ledgerapi.Answer
	errs := make([]error, 4)
	var reads sync.WaitGroup
	reads.Go(func() { seq, errs[0] = n.ledger.Sequence(ctx, n.cfg.Group, api.Sequence) })
	reads.Go(func() { handover, errs[1] = n.ledger.Checkpoint(ctx, n.cfg.Group, api.HandoverCheckpoint) })
	reads.Go(func() { ticked, errs[2] = n.ledger.Checkpoint(ctx, n.cfg.Group, schedulerCheckpoint) })
	reads.Go(func() {
		value, _ := json.Marshal(opening{n.cfg.ID, n.address})
		answer, errs[3] = p.Write(ctx, ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: "leader", Value: value}})
		out.began, out.offset = p.LastAttempt(), time.Duration(n.host.Now())-time.Duration(answer.AtMS)*time.Millisecond
	})
	reads.Wait()
	for i, err := range errs {
		if err != nil && !errors.Is(err, ledgerapi.ErrNotFound) {
			what := [...]string{"the sequence", "the handover", "the scheduler's cursor", "the first write"}[i]
			return out, fmt.Errorf("fleet: %s of group %q: %w", what, n.cfg.Group, err)
		}
	}
	out.lastSeq, out.atMS = seq.LastSeq, answer.AtMS
	out.lastWrite = max(seq.UpdatedMS, handover.UpdatedMS, ticked.UpdatedMS)
	var h api.Handover
	if len(handover.Value) > 0 && json.Unmarshal(handover.Value, &h) == nil {
		out.handover = &h
	}
	return out, nil
}

// skip takes the numbers that this node knows to have been given out and that the ledger
// does not know of, so that nobody gets them again. There are some only after an operator
// has accepted a ledger that lost data.
func (n *Node) skip(ctx context.Context, p *fencedwriter.Pen, past *past) error {
	for known := n.highest.Load(); past.lastSeq < known; {
		last := min(known, past.lastSeq+ledgerapi.MaxRange)
		n.cfg.Log.Warn("skipping numbers that the ledger has lost", "group", n.cfg.Group, "first", past.lastSeq+1, "last", last)
		if _, err := p.Write(ctx, ledgerapi.Write{Sequence: &ledgerapi.SequenceWrite{Name: api.Sequence, First: past.lastSeq + 1, Last: last}}); err != nil {
			return fmt.Errorf("fleet: skipping numbers of group %q: %w", n.cfg.Group, err)
		}
		past.lastSeq = last
	}
	n.know(past.lastSeq)
	return nil
}

// know notes that a number was taken.
func (n *Node) know(seq uint64) {
	for old := n.highest.Load(); old < seq; old = n.highest.Load() {
		if n.highest.CompareAndSwap(old, seq) {
			return
		}
	}
}

func (n *Node) readSequence(ctx context.Context) (uint64, error) {
	s, err := n.ledger.Sequence(ctx, n.cfg.Group, api.Sequence)
	n.sink.saw(err)
	if errors.Is(err, ledgerapi.ErrNotFound) {
		return 0, nil
	}
	n.know(s.LastSeq)
	return s.LastSeq, err
}

// bequeath leaves the successor what it needs, where the term ended by this node's own
// will: then nobody else writes before work has returned.
func (n *Node) bequeath(ctx context.Context, l *leading, cause error) {
	n.reached(api.MomentResigning)
	switch {
	case l.pen.Refused(), fencedwriter.Stop(cause) && !willing(cause):
		return // others lead
	case n.sink.health() != nil:
		return // it would be waited for in vain
	}
	h := api.Handover{Node: n.cfg.ID, Token: l.term.Token(), StoppedAt: n.host.Now(), Reason: reason(cause), LastSeq: l.seq.Last()}
	value, err := json.Marshal(h)
	if err == nil {
		_, err = l.pen.WriteLast(ctx, ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: api.HandoverCheckpoint, Value: value}})
	}
	if err != nil {
		n.cfg.Log.Warn("the handover could not be written down", "group", l.term.Group(), "token", l.term.Token(), "error", err)
	}
}

// willing: the term ended by the leader's own will.
func willing(cause error) bool {
	return errors.Is(cause, tenure.ErrResigned) || errors.Is(cause, tenure.ErrTransferred) || errors.Is(cause, tenure.ErrUnhealthy)
}

func reason(cause error) string {
	for _, r := range []struct {
		err  error
		word string
	}{{tenure.ErrTransferred, "transferred"}, {tenure.ErrUnhealthy, "unhealthy"}, {tenure.ErrResigned, "resigned"}} {
		if errors.Is(cause, r.err) {
			return r.word
		}
	}
	return "gave up"
}
