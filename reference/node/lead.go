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
	"github.com/tenurehq/tenure/reference/compactor"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node/failover"
	"github.com/tenurehq/tenure/reference/node/nodemetrics"
	"github.com/tenurehq/tenure/reference/scheduler"
	"github.com/tenurehq/tenure/reference/sequencer"
	"github.com/tenurehq/tenure/reference/wait"
)

// Leading is the work of one term, while it takes calls.
type Leading struct {
	Term       *tenure.Term
	Writer     *fencedwriter.TermWriter
	Sequencer  *sequencer.Sequencer
	Compaction *compactor.Service
	record     *failover.Recorder
	answered   atomic.Bool
}

// Found is called for each answered call of a client. Only the first counts.
func (l *Leading) Found() {
	if !l.answered.Load() && l.answered.CompareAndSwap(false, true) {
		l.record.Reached(api.PhaseFound)
	}
}

// work is what a node does while it leads. The ledger is sealed already.
func (n *Node) work(ctx context.Context, term *tenure.Term) error {
	n.reached(api.MomentSealed)
	n.sink.Begin()
	writer := n.newWriter(term)
	past, err := n.load(ctx, writer)
	if err == nil {
		err = n.skip(ctx, writer, &past)
	}
	if err != nil {
		n.sink.Sealed(err)
		return err
	}
	n.unsealed.Store(0)
	l := &Leading{Term: term, Writer: writer, record: n.newRecorder(writer, past.Past), Compaction: compactor.NewService(n.Ledger, n.Config.Group, writer, n.clock, n.Config.Log)}
	// The first successful write ends the warm-up of a new leader.
	recorded := writerFunc(func(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
		a, err := writer.Write(ctx, writes...)
		if err == nil {
			l.record.Reached(api.PhaseWarm)
		}
		return a, err
	})
	l.Sequencer = sequencer.New(sequencer.Config{
		Writer: recorded, Name: api.Sequence, Token: term.Token(), Last: past.lastSeq, Read: n.readSequence,
		Timeout: n.Config.WriteTimeout, Batch: n.Config.Batch, Wrote: n.metrics.Wrote,
	})

	// The first part of the work that ends stops all others.
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
	part("sequencer", l.Sequencer.Run)
	part("scheduler", func(ctx context.Context) error {
		return n.Scheduler.Lead(ctx, recorded, writerFunc(writer.WriteLast), term.Stamp(), nil)
	})
	part("compaction", l.Compaction.Run)
	part("failover record", l.record.Run)
	part("ledger", n.watchSink)
	l.record.Reached(api.PhaseLoad)
	n.leading.Store(l)
	n.Config.Log.Info("leading", "group", term.Group(), "token", term.Token(), "seq", past.lastSeq)

	<-work.Done()
	n.leading.Store(nil)
	parts.Wait()
	n.recordTaken(l.Sequencer.Last())
	writer.Close() // waits for callers of /jobs and the like, which write with it too
	cause := context.Cause(work)
	if err := term.Check(); err != nil {
		cause = err // the cause of the end says more than the request to stop
	}
	n.Config.Log.Info("stopped", "group", term.Group(), "token", term.Token(), "cause", cause)
	n.handover(ctx, l, cause)
	return cause
}

func (n *Node) newRecorder(w fencedwriter.Writer, past failover.Past) *failover.Recorder {
	t := n.term.Load()
	return failover.New(failover.Config{
		Node: n.Config.ID, Group: n.Config.Group, Target: n.Config.RTO, Ledger: n.Ledger, Writer: w, Host: n.host, Log: n.Config.Log,
		Ended: n.metrics.Phase, Gap: n.metrics.Gap,
	}, t.Token(), t.at, n.vacancy.Load(), past)
}

type writerFunc func(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error)

func (f writerFunc) Write(ctx context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	return f(ctx, writes...)
}

func (n *Node) newWriter(term *tenure.Term) *fencedwriter.TermWriter {
	return fencedwriter.New(fencedwriter.Config{
		Ledger: n.Ledger, Resource: n.Config.Group, Term: term, Holder: n.Config.ID, Timeout: n.Config.WriteTimeout, Host: n.host,
		Between: func() { n.reached(api.MomentWrite) },
		Attempted: func(at clock.Instant, token fence.Token, writes []ledgerapi.Write) {
			n.trace(Event{Kind: api.TraceAttempt, At: at, Token: token, Writes: writes})
		},
		Done: func(at clock.Instant, took time.Duration, err error) {
			n.trace(Event{Kind: api.TraceDone, At: at, End: at.Add(took), Token: term.Token(), What: nodemetrics.Outcome(err)})
			n.sink.Saw(err)
			n.sink.Wrote(err)
			n.metrics.Attempted(took, err)
			if errors.Is(err, fence.ErrRefused) {
				n.Config.Log.Warn("write refused: stepping down", "group", term.Group(), "token", term.Token(), "error", err)
			}
		},
	})
}

// watchSink ends the work when the ledger stays unreachable.
func (n *Node) watchSink(ctx context.Context) error {
	for wait.For(ctx, max(n.Config.SinkPatience/10, 10*time.Millisecond)) {
		if err := errors.Join(n.sink.Lasting(), n.sink.Writable()); err != nil {
			return err
		}
	}
	return nil
}

// past is what earlier leaders have left, read after the seal.
type past struct {
	lastSeq uint64
	failover.Past
}

// opening is the first write of a new leader: who leads. It also shows that the ledger
// accepts its writes.
type opening struct {
	Node    string `json:"node"`
	Address string `json:"address"`
}

// load reads, concurrently, what can have changed since the standby read it.
func (n *Node) load(ctx context.Context, w *fencedwriter.TermWriter) (past, error) {
	var out past
	var seq ledgerapi.Sequence
	var handover, ticked ledgerapi.Checkpoint
	var answer ledgerapi.Answer
	errs := make([]error, 4)
	var reads sync.WaitGroup
	reads.Go(func() { seq, errs[0] = n.Ledger.Sequence(ctx, n.Config.Group, api.Sequence) })
	reads.Go(func() { handover, errs[1] = n.Ledger.Checkpoint(ctx, n.Config.Group, api.HandoverCheckpoint) })
	reads.Go(func() { ticked, errs[2] = n.Ledger.Checkpoint(ctx, n.Config.Group, scheduler.Checkpoint) })
	reads.Go(func() {
		value, _ := json.Marshal(opening{n.Config.ID, n.Address})
		answer, errs[3] = w.Write(ctx, ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: "leader", Value: value}})
		out.Began, out.Offset = w.LastAttempt(), time.Duration(n.host.Now())-time.Duration(answer.AtMS)*time.Millisecond
	})
	reads.Wait()
	for i, err := range errs {
		if err != nil && !errors.Is(err, ledgerapi.ErrNotFound) {
			what := [...]string{"read the sequence", "read the handover", "read the scheduler's cursor", "make the first write"}[i]
			return out, fmt.Errorf("%s of group %q: %w", what, n.Config.Group, err)
		}
	}
	out.lastSeq, out.AtMS = seq.LastSeq, answer.AtMS
	out.LastWrite = max(seq.UpdatedMS, handover.UpdatedMS, ticked.UpdatedMS) // the cursor is written with every tick
	var h api.Handover
	if len(handover.Value) > 0 && json.Unmarshal(handover.Value, &h) == nil {
		out.Handover = &h
	}
	return out, nil
}

// skip takes the numbers that were handed out, as far as this node knows, and that the ledger
// has lost, so that nobody gets them again. There are some only after an operator has accepted
// a ledger that lost data.
func (n *Node) skip(ctx context.Context, w *fencedwriter.TermWriter, past *past) error {
	for known := n.highest.Load(); past.lastSeq < known; {
		last := min(known, past.lastSeq+ledgerapi.MaxRange)
		n.Config.Log.Warn("skipping numbers that the ledger has lost", "group", n.Config.Group, "first", past.lastSeq+1, "last", last)
		if _, err := w.Write(ctx, ledgerapi.Write{Sequence: &ledgerapi.SequenceWrite{Name: api.Sequence, First: past.lastSeq + 1, Last: last}}); err != nil {
			return fmt.Errorf("skip numbers of group %q: %w", n.Config.Group, err)
		}
		past.lastSeq = last
	}
	n.recordTaken(past.lastSeq)
	return nil
}

// recordTaken records that a number was taken.
func (n *Node) recordTaken(seq uint64) {
	for {
		if old := n.highest.Load(); old >= seq || n.highest.CompareAndSwap(old, seq) {
			return
		}
	}
}

func (n *Node) readSequence(ctx context.Context) (uint64, error) {
	s, err := n.Ledger.Sequence(ctx, n.Config.Group, api.Sequence)
	n.sink.Saw(err)
	if errors.Is(err, ledgerapi.ErrNotFound) {
		return 0, nil
	}
	n.recordTaken(s.LastSeq)
	return s.LastSeq, err
}

// handover writes what the successor needs if this node ended the term itself: then no other
// node writes before the work has returned.
func (n *Node) handover(ctx context.Context, l *Leading, cause error) {
	n.reached(api.MomentResigning)
	reason := "gave up"
	switch willing := endedItself(cause); {
	case l.Writer.Refused(), fencedwriter.Stop(cause) && willing == "":
		return // another node leads
	case n.sink.Lasting() != nil:
		return // the write would only time out
	case willing != "":
		reason = willing
	}
	h := api.Handover{Node: n.Config.ID, Token: l.Term.Token(), StoppedAt: n.host.Now(), Reason: reason, LastSeq: l.Sequencer.Last()}
	value, err := json.Marshal(h)
	if err == nil {
		_, err = l.Writer.WriteLast(ctx, ledgerapi.Write{Checkpoint: &ledgerapi.CheckpointWrite{Name: api.HandoverCheckpoint, Value: value}})
	}
	if err != nil {
		n.Config.Log.Warn("the handover could not be recorded", "group", l.Term.Group(), "token", l.Term.Token(), "error", err)
	}
}

// endedItself returns why a leader ended its term itself; empty if it did not.
func endedItself(cause error) string {
	switch word := nodemetrics.Ending(cause); word {
	case "transferred", "unhealthy", "resigned":
		return word
	}
	return ""
}
