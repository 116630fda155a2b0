package machine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// Errors that a campaign ends with. Package lease exports them.
var (
	ErrClosed = errors.New("lease: node is closed")
	ErrLed    = errors.New("another leads the group")
)

// Machine decides everything that a candidate does: when to open a session, to
// send a keep-alive, to try for a vacant group, to begin and to end a term. It is
// pure: events and the time go in, actions come out. It reads no clock, starts no
// goroutine and never blocks, so that a simulator can drive it through many bad
// runs. lease.Node drives it in a process.
//
// M1: a term begins only on a record that names the current session, while that
// session is trusted, with a token above every token used before.
// M2: only keep-alives extend trust, counted from when they are sent.
// M3: every term ends when trust ends, whatever calls are in flight.
// M4: a grant is released only after work has returned.
// M5: a group whose record names the current session is led, is ending, or is
// being released: no grant is forgotten.
type Machine struct {
	cfg  Config
	rand *rand.Rand
	now  clock.Instant
	out  []Action

	started  bool
	calls    []*flight
	nextID   uint64
	inFlight [kinds]int // calls that have not timed out

	session   *session
	retired   []*session
	opening   bool
	attempt   uint64 // number of the next session: it stays the same until that is open
	openAt    clock.Instant
	openFails int
	idleAt    clock.Instant

	watching   watching
	watchAt    clock.Instant
	watchFails int
	lineKnown  bool // a watch has shown all candidates
	beatFrom   int  // index of the first group whose record the next keep-alive reads

	groups  map[string]*groupState
	order   []*groupState // in order of creation: iteration over a map would not be repeatable
	actives int           // groups that need a session
	// vacancies counts the vacant groups with a campaign.
	vacancies int
	// mostVacant is the recent maximum of vacancies, and mostAt when it was reached.
	mostVacant int
	mostAt     clock.Instant
	wakes      wakes
	acquires   []*groupState // due, not sent yet
	releases   []*groupState
	reads      []*groupState

	commits  [16]time.Duration // how long recent commits took
	commitAt int

	unhealthy error
	answers   map[string]store.Answer
	answered  []string      // keys of answers, oldest first
	answerBy  clock.Instant // until when the session stays open, so that operators can read answers
	stopping  bool
	stopped   bool
	stopErr   error // why the session could not be closed
	// closeBy is how long a shutdown waits for all work to return, so that one
	// close frees all groups. After it, each group is released by itself.
	closeBy clock.Instant
}

// Config is what a machine must know. Timing must be complete and valid.
type Config struct {
	Timing    Timing
	Candidate tenure.Candidate
	Scope     store.Scope
	Caps      store.Caps
	// Line orders the candidates. The shell's watch updates it. Nil: there are no others.
	Line Line
	// Attempt is sent with every Open. Empty: each session has one of its own.
	Attempt string
	// Session, if not nil, is a living session that the machine uses instead of opening one.
	// Sent is when its last acknowledged Open or keep-alive was sent.
	Session *store.Session
	Sent    clock.Instant
	// Lent: the session belongs to another owner, who keeps it alive and ends terms in time.
	// The machine only campaigns with it. It sends no keep-alive, ends no term for lack of
	// trust, and neither closes the session nor opens another. When the session is dead,
	// every campaign fails with ErrSessionDead. The machine releases only groups that it has
	// tried to acquire itself.
	Lent bool
	// Sick, if not nil, keeps the machine from campaigning until OnHealth has no Cause.
	Sick error
	// Seed makes the jitter. Equal seeds and equal events give equal actions.
	Seed  uint64
	Plant plant.Set
}

type watching uint8

const (
	watchOff watching = iota
	watchStarting
	watchSynced
)

// New returns a machine. Nothing happens before the first Step.
func New(cfg Config) *Machine {
	cfg.Caps.Batch = max(cfg.Caps.Batch, 1)
	if cfg.Line == nil {
		cfg.Line = &Roster{}
	}
	m := &Machine{
		cfg:       cfg,
		rand:      rand.New(rand.NewPCG(cfg.Seed, 0x74656e757265)),
		openAt:    clock.Never,
		idleAt:    clock.Never,
		watchAt:   clock.Never,
		groups:    map[string]*groupState{},
		answers:   map[string]store.Answer{},
		unhealthy: cfg.Sick,
	}
	if cfg.Session != nil {
		m.session = m.start(*cfg.Session, cfg.Sent)
	}
	return m
}

// EventKind says what happened.
type EventKind uint8

// The events.
const (
	OnCampaign  EventKind = iota + 1 // Group, Once: a campaign starts
	OnWithdraw                       // Group: the campaign is cancelled
	OnEnded                          // Group, Token, Cause: the holder has ended the term
	OnReturned                       // Group, Token, To, Session: work has returned
	OnHealth                         // Cause: nil is healthy
	OnShutdown                       // end everything
	OnReply                          // Reply
	OnView                           // View, from the watch
	OnWatchLost                      // Cause
)

// Event is something that happened.
type Event struct {
	Kind  EventKind
	Group string
	Once  bool // fail if another leads, instead of waiting
	Token fence.Token
	To    string
	// Session of To, if it is known. It saves a listing of the sessions.
	Session store.SessionID
	Cause   error
	View    *store.View
	Reply   *Reply

	Stream uint64 // for the shell: the watch that it comes from
}

// ActionKind says what to do.
type ActionKind uint8

// The actions.
const (
	DoCall    ActionKind = iota + 1 // Call: call the store, reply with OnReply
	DoWatch                         // start watching the scope
	DoTrust                         // Session is trusted until Until, and not at risk
	DoRisk                          // Session: keep-alives fail, trust will end
	DoBegin                         // Group, Record: a term begins
	DoEnd                           // Group, Token, Cause: the term ends
	DoFail                          // Group, Cause: the campaign is over without a term
	DoSettle                        // Group, Token, Cause: the release is done, or why not
	DoOverrun                       // Group, Token: work has not returned in time
	DoNote                          // Note: for logs and metrics
	DoStopped                       // after OnShutdown: nothing is left to do
)

// Action is something to do.
type Action struct {
	Kind    ActionKind
	Group   string
	Token   fence.Token
	Cause   error
	Record  store.Record
	Session store.Session
	Until   clock.Instant
	Call    *Call
	Note    Note
}

// CallKind says which method of the Store.
type CallKind uint8

// The calls.
const (
	CallOpen CallKind = iota + 1
	CallBeat
	CallClose
	CallAcquire
	CallRelease
	CallSessions // of a group, to find the successor of a transfer
	CallRead
	CallAnswer
	kinds
)

func (k CallKind) String() string {
	return [...]string{"?", "open", "keep-alive", "close", "acquire", "release", "sessions", "read", "answer"}[k]
}

// maxInFlight bounds the concurrent calls of each kind.
var maxInFlight = [kinds]int{CallOpen: 1, CallBeat: 1, CallClose: 4, CallAcquire: 4, CallRelease: 16, CallSessions: 4, CallRead: 8, CallAnswer: 4}

// Call is a call to the store. The shell answers it with one Reply with its ID, within Timeout.
type Call struct {
	ID      uint64
	Kind    CallKind
	Timeout time.Duration

	Session store.SessionID
	TTL     time.Duration   // open
	Attempt string          // open
	Groups  []string        // keep-alive
	Seen    []store.Record  // acquire; close: on condition that they are unchanged
	Held    []store.Record  // release
	To      store.SessionID // release
	Reason  store.Reason    // release, close
	Group   string          // read, sessions
	Request string          // answer
	Answer  store.Answer    // answer
}

// Reply is the store's answer.
type Reply struct {
	ID       uint64
	Err      error
	Session  store.Session   // open
	Beat     store.Beat      // keep-alive
	Records  []store.Record  // acquire, release
	View     store.View      // read
	Sessions []store.Session // sessions
}

// Do calls the store and returns its answer. An Open uses the candidate and the options, with
// the call's attempt.
func (c *Call) Do(ctx context.Context, s store.Store, by tenure.Candidate, o store.OpenOptions) *Reply {
	r := &Reply{ID: c.ID}
	switch c.Kind {
	case CallOpen:
		o.Attempt = c.Attempt
		r.Session, r.Err = s.Open(ctx, by, c.TTL, o)
	case CallBeat:
		r.Beat, r.Err = s.KeepAlive(ctx, c.Session, c.Groups...)
	case CallClose:
		r.Err = s.End(ctx, c.Session, c.Reason, c.Seen...)
	case CallAcquire:
		r.Records, r.Err = s.Acquire(ctx, c.Session, c.Seen...)
	case CallRelease:
		r.Records, r.Err = s.Release(ctx, c.Session, c.To, c.Reason, c.Held...)
	case CallSessions:
		r.Sessions, r.Err = s.Sessions(ctx, store.Scope{c.Group}, store.Page{})
	case CallRead:
		r.View, r.Err = s.Read(ctx, c.Group)
	case CallAnswer:
		r.Err = s.Answer(ctx, c.Session, c.Request, c.Answer)
	}
	return r
}

// errTimeout is the machine's own error for a call without a reply within its Timeout.
var errTimeout = errors.New("no answer in time")

// check turns a reply that does not fit its call into an error with an unknown outcome.
func (r *Reply) check(f *flight) {
	if (f.Kind == CallAcquire || f.Kind == CallRelease) && r.Err == nil && len(r.Records) != len(f.groups) {
		r.Err = fmt.Errorf("lease: the store answered %s of %d groups with %d records", f.Kind, len(f.groups), len(r.Records))
	}
}

// flight is a call in flight. After a timeout it is kept for a while, because a late
// reply to a keep-alive still extends trust, counted from its sending.
type flight struct {
	*Call
	sent clock.Instant
	late bool // it timed out
	// What the call is for. A closure for the reply would allocate.
	session *session
	groups  []*groupState
	request *store.Request // the operator's request that a CallSessions is for
}

// Step takes what has happened by now and returns what to do, in order. The
// slice is valid until the next Step. Deadlines are handled before the events:
// a reply that is read after a deadline comes too late.
func (m *Machine) Step(now clock.Instant, events ...Event) []Action {
	if m.started { // otherwise m.out has the actions of New
		m.out = m.out[:0]
	}
	m.started = true
	m.now = max(m.now, now)
	if m.stopped {
		return nil
	}
	m.deadlines()
	for i := range events {
		m.handle(&events[i])
	}
	m.due()
	return m.out
}

// Next is when the shell must call Step if there is no event before.
func (m *Machine) Next() clock.Instant {
	if m.stopped || m.hung() {
		return clock.Never
	}
	next := min(m.openAt, m.idleAt, m.watchAt)
	if s := m.session; s != nil {
		next = min(next, s.beatAt, m.stopAt(s), m.riskAt(s))
	}
	for _, f := range m.calls {
		if !f.late {
			next = min(next, f.sent.Add(f.Timeout))
		}
	}
	if len(m.wakes) > 0 {
		next = min(next, m.wakes[0].wake)
	}
	return next
}

// deadlines handles the end of trust, timeouts of calls, and the risk of losing trust.
func (m *Machine) deadlines() {
	if m.hung() {
		return
	}
	if s := m.session; s != nil && m.now >= m.stopAt(s) {
		m.expire()
	}
	m.timeOut()
	if s := m.session; s != nil && m.now >= m.riskAt(s) {
		s.atRisk = true
		m.do(Action{Kind: DoRisk, Session: s.Session})
	}
}

// hung is a planted bug: the machine ignores its timers while calls are in flight.
func (m *Machine) hung() bool { return m.cfg.Plant.Has(plant.HungCallBlocks) && len(m.calls) > 0 }

// due does what its timers and queues are due for.
func (m *Machine) due() {
	if m.now >= m.openAt {
		m.openAt = clock.Never
		m.open()
	}
	if s := m.session; s != nil && m.now >= s.beatAt {
		m.beat()
	}
	if m.now >= m.idleAt {
		m.idleAt = clock.Never
		m.retire(store.Resigned)
	}
	if m.now >= m.watchAt {
		m.watch()
	}
	for len(m.wakes) > 0 && m.wakes[0].wake <= m.now {
		m.wakes[0].fire(m)
	}
	m.sendAcquires()
	m.sendReleases()
	m.sendReads()
	if m.stopping {
		m.stop()
	}
}

func (m *Machine) handle(e *Event) {
	switch e.Kind {
	case OnCampaign:
		m.campaign(m.group(e.Group), e.Once)
	case OnWithdraw:
		m.withdraw(m.group(e.Group))
	case OnEnded:
		m.ended(m.group(e.Group), e.Token, e.Cause)
	case OnReturned:
		m.returned(m.group(e.Group), e.Token, e.To, e.Session)
	case OnHealth:
		m.health(e.Cause)
	case OnShutdown:
		m.shutdown()
	case OnReply:
		m.reply(e.Reply)
	case OnView:
		m.onView(e.View)
	case OnWatchLost:
		m.watchLost(e.Cause)
	}
}

func (m *Machine) do(a Action) { m.out = append(m.out, a) }

func (m *Machine) note(n Note) { m.do(Action{Kind: DoNote, Note: n}) }

// send starts a call. The caller has checked mayCall.
func (m *Machine) send(c *Call, s *session, groups ...*groupState) {
	m.nextID++
	c.ID = m.nextID
	c.Timeout = m.cfg.Timing.CallTimeout
	m.inFlight[c.Kind]++
	m.calls = append(m.calls, &flight{Call: c, sent: m.now, session: s, groups: groups})
	m.do(Action{Kind: DoCall, Call: c})
}

// mayCall reports whether another call of the kind may be sent.
func (m *Machine) mayCall(k CallKind) bool { return m.inFlight[k] < maxInFlight[k] }

// timeOut gives calls without a reply an unknown outcome, so that a hanging call
// blocks nothing.
func (m *Machine) timeOut() {
	for i := 0; i < len(m.calls); i++ {
		f := m.calls[i]
		switch {
		case f.late:
			if m.now.Sub(f.sent) > m.cfg.Timing.TTL {
				m.calls = slices.Delete(m.calls, i, i+1)
				i--
			}
		case m.now >= f.sent.Add(f.Timeout):
			f.late = true
			m.inFlight[f.Kind]--
			m.dispatch(f, &Reply{ID: f.ID, Err: errTimeout})
		}
	}
}

func (m *Machine) reply(r *Reply) {
	i := slices.IndexFunc(m.calls, func(f *flight) bool { return f.ID == r.ID })
	if i < 0 {
		return
	}
	f := m.calls[i]
	m.calls = slices.Delete(m.calls, i, i+1)
	if f.late {
		m.late(f, r)
		return
	}
	m.inFlight[f.Kind]--
	m.dispatch(f, r)
}

func (m *Machine) dispatch(f *flight, r *Reply) {
	r.check(f)
	if r.Err == nil || store.Definite(r.Err) {
		switch f.Kind {
		case CallOpen, CallAcquire, CallRelease:
			m.commits[m.commitAt%len(m.commits)] = m.now.Sub(f.sent)
			m.commitAt++
		}
	}
	switch f.Kind {
	case CallOpen:
		m.opened(f, r)
	case CallBeat:
		m.beatDone(f, r)
	case CallClose:
		m.closed(f, r)
	case CallAcquire:
		m.acquired(f, r)
	case CallRelease:
		m.released(f, r)
	case CallSessions:
		m.listed(f, r)
	case CallRead:
		m.confirmed(f, r)
	case CallAnswer:
		// If it failed, the next keep-alive delivers the request again.
	}
}

// late handles the reply to a call that has timed out. A definite reply is still
// true.
func (m *Machine) late(f *flight, r *Reply) {
	r.check(f)
	switch {
	case f.Kind == CallBeat:
		m.beatDone(f, r)
	case f.Kind == CallOpen && r.Err == nil && f.Attempt == m.attemptName() && !m.opening && m.session == nil:
		// Use it now. A retry in flight returns this same session. If a retry has already
		// returned it, the session is in use, and its terms must not be interrupted.
		m.opened(f, r)
	case f.Kind == CallAcquire && r.Err == nil:
		m.won(f, r)
	}
}

// backoff is exponential with full jitter.
func (m *Machine) backoff(fails int) time.Duration {
	return m.backoffUpTo(fails, m.cfg.Timing.BackoffMax)
}

// pause is the backoff of the calls that all candidates make after an outage: to open a
// session and to watch. Its maximum grows with the number of candidates, by one Step for
// each, so that they do not overload the engine. With few candidates it is BackoffMax.
func (m *Machine) pause(fails int) time.Duration {
	t := &m.cfg.Timing
	all := min(time.Duration(m.cfg.Line.Len())*t.Step, 2*t.TTL)
	return m.backoffUpTo(fails, max(t.BackoffMax, all))
}

func (m *Machine) backoffUpTo(fails int, ceiling time.Duration) time.Duration {
	t := &m.cfg.Timing
	if fails < 62 && t.BackoffMin < ceiling>>fails {
		ceiling = t.BackoffMin << fails
	}
	return time.Duration(m.rand.Int64N(int64(ceiling) + 1))
}

// step is how long each candidate in line waits for the one before it: long enough
// to see that one's commit, judging by how long recent commits took.
func (m *Machine) step() time.Duration {
	s := m.cfg.Timing.Step
	most := max(s, m.cfg.Timing.TTL/16)
	for _, c := range m.commits {
		s = max(s, c)
	}
	return min(s, most)
}

// Holds lists the groups whose work has not returned: what a shutdown waits for.
func (m *Machine) Holds() []string {
	var groups []string
	for _, s := range m.order {
		if s.lostHold != nil || s.hold != nil && !s.hold.returned {
			groups = append(groups, s.group)
		}
	}
	return groups
}
