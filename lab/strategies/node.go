package strategies

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// message goes between a candidate's process and the program that started it.
type message struct {
	Op string
	At clock.Instant
	// Term counts the terms of this process.
	Term   int    `json:",omitempty"`
	Token  uint64 `json:",omitempty"`
	OK     bool   `json:",omitempty"`
	Beats  int64  `json:",omitempty"`
	Others int64  `json:",omitempty"`
	// Renewed is how long the latest keep-alive took.
	Renewed time.Duration `json:",omitempty"`
	Text    string        `json:",omitempty"`
}

// The operations of messages. A candidate waits for an answer to opBegin and opWrite.
const (
	opReady  = "ready"
	opBegin  = "begin"  // a term begins
	opWrite  = "write"  // a leader that has checked writes
	opDoubts = "doubts" // At: when it last believed
	opCounts = "counts"
	opLog    = "log"
	opGo     = "go"    // campaign
	opCount  = "count" // answer with opCounts
	opElect  = "elect" // begin an election
	opResign = "resign"
	opAnswer = "answer"
)

// member is a candidate inside its process.
type member struct {
	Config
	sent    sent
	answers chan message
	resign  atomic.Bool

	mu  sync.Mutex
	out *json.Encoder
}

func now() clock.Instant { return clock.System().Now() }

// RunCandidate is the process of a candidate. Its configuration is the first line of in; the
// process ends with in.
func RunCandidate(in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	commands := json.NewDecoder(in)
	m := &member{answers: make(chan message, 1), out: json.NewEncoder(out)}
	if err := commands.Decode(&m.Config); err != nil {
		return fmt.Errorf("read the configuration of a candidate: %w", err)
	}
	s, err := find(m.Strategy)
	if err != nil {
		return err
	}
	elector, err := s.open(ctx, m.Config, &m.sent)
	if err != nil {
		return fmt.Errorf("start candidate %d of %s: %w", m.ID, m.Strategy, err)
	}
	proceed := make(chan struct{})
	go func() {
		defer cancel()
		for {
			var c message
			if commands.Decode(&c) != nil {
				return
			}
			switch c.Op {
			case opGo:
				close(proceed)
			case opCount:
				m.tell(message{Op: opCounts, Beats: m.sent.beats.Load(), Others: m.sent.others.Load(), Renewed: time.Duration(m.sent.renewed.Load())})
			case opResign:
				m.resign.Store(true)
			case opElect:
				if e, ok := elector.(interface{ Elect() }); ok {
					e.Elect()
				}
			case opAnswer:
				m.answers <- c
			}
		}
	}()
	m.tell(message{Op: opReady})
	select {
	case <-proceed:
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		term, err := elector.Campaign(ctx)
		if err != nil {
			m.tell(message{Op: opLog, Text: err.Error()})
			pause(ctx, m.beat())
			continue
		}
		m.lead(ctx, term)
	}
	return nil // the end of the process closes everything
}

func (m *member) tell(x message) {
	if x.At == 0 {
		x.At = now()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.out.Encode(x) // the reader has ended, and so will this process
}

// ask sends a message and waits for the answer.
func (m *member) ask(ctx context.Context, x message) bool {
	m.tell(x)
	select {
	case a := <-m.answers:
		return a.OK
	case <-ctx.Done():
		return false
	}
}

// lead writes as long as the leader believes. There is a step of work between a check and the
// write that follows: no check prevents that the process is stopped there.
func (m *member) lead(ctx context.Context, t Term) {
	begin := message{Op: opBegin, Token: t.Token}
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { m.watchBelief(t, over) })
	m.resign.Store(false)
	ok := m.ask(ctx, begin)
	for ok && ctx.Err() == nil && t.Believes() && !m.resign.Load() {
		pause(ctx, m.Step)
		ok = m.ask(ctx, message{Op: opWrite, Token: t.Token})
	}
	close(over)
	watching.Wait()
	stopping, cancel := context.WithTimeout(ctx, m.TTL)
	defer cancel()
	if err := t.Stop(stopping); err != nil {
		m.tell(message{Op: opLog, Text: err.Error()})
	}
}

// watchBelief reports when the leader no longer believes.
func (m *member) watchBelief(t Term, over <-chan struct{}) {
	last := now()
	for {
		asked := now()
		if !t.Believes() {
			break
		}
		last = asked
		select {
		case <-over:
			m.tell(message{Op: opDoubts, At: now()})
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
	m.tell(message{Op: opDoubts, At: last})
	<-over
}

// pause waits; false: ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
