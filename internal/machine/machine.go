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
// beat, to try for a vacant group, to begin and to end a term. It is pure: events
// and the time go in, actions come out. It reads no clock, starts nothing and
// waits for nothing, so that a simulator can drive it through ten thousand bad
// days. Node is the shell that drives it in a process.
//
// M1: a term begins only on a record that names the present session, while that
// session is trusted, with a token above every one spent before.
// M2: trust is extended by keep-alives only, counted from their sending.
// M3: every term ends when trust does, whatever calls are under way.
// M4: a grant is released only after work has returned.
// M5: a record that names the present session is led, being ended, or being
// released: there are no orphans.
type Machine struct {
	cfg  Config
	rand *rand.Rand
	now  clock.Instant
	out  []Action

	started bool
	calls   []*flight
	nextID  uint64
	lanes   [kinds]int

	session   *session
	retired   []*session
	opening   bool
	attempt   uint64 // of the session to be opened next: the same until one is opened
	openAt    clock.Instant
	openFails int
	idleAt    clock.Instant

	watching   watching
	watchAt    clock.Instant
	watchFails int
	placed     bool // a watch has shown everybody in line
	named      int  // the seat whose record the next keep-alive reads first

	seats   map[string]*seat
	order   []*seat // as they came: maps have no order that repeats
	actives int     // seats that need a session
	// vacancies counts the seats of vacant groups that somebody waits for.
	vacancies int
	// mostVacant is how many there were at once lately, and mostAt when.
	mostVacant int
	mostAt     clock.Instant
	wakes      wakes
	acquires   []*seat // due, waiting for a lane
	releases   []*seat
	reads      []*seat

	commits  [16]time.Duration // recent
	commitAt int

	sick     error
	answers  map[string]store.Answer
	answered []string      // keys of answers, oldest first
	answerBy clock.Instant // until when the session is kept open for who asks for an answer
	stopping bool
	stopped  bool
	stopErr  error // the session could not be closed
	// closeBy is until when a shutdown hopes that all work returns, so that one
	// close frees all groups; then each is freed by itself.
	closeBy clock.Instant
}

// Config is what a machine must know. Timing must be complete and valid.
type Config struct {
	Timing    Timing
	Candidate tenure.Candidate
	Scope     store.Scope
	Caps      store.Caps
	// Line says who stands where. Whoever watches feeds it. Nil: nobody else stands.
	Line Line
	// Attempt is sent with every Open. Empty: each session has one of its own.
	Attempt string
	// Session, if not nil, is living: the machine starts with it instead of opening one.
	// Sent is when the Open or keep-alive was sent that was acknowledged last for it.
	Session *store.Session
	Sent    clock.Instant
	// Lent: the session belongs to somebody else, who keeps it alive and ends terms in
	// time. The machine only campaigns with it. It sends no keep-alive, ends no term for
	// lack of trust, and neither closes the session nor opens another: when it is dead,
	// every campaign fails with ErrSessionDead. What it has not tried to acquire itself
	// it does not release.
	Lent bool
	// Sick keeps the machine from campaigning until OnHealth says that it is well.
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

// New returns a machine at rest.
func New(cfg Config) *Machine {
	cfg.Caps.Batch = max(cfg.Caps.Batch, 1)
	if cfg.Line == nil {
		cfg.Line = &Roster{}
	}
	m := &Machine{
		cfg:     cfg,
		rand:    rand.New(rand.NewPCG(cfg.Seed, 0x74656e757265)),
		openAt:  clock.Never,
		idleAt:  clock.Never,
		watchAt: clock.Never,
		seats:   map[string]*seat{},
		answers: map[string]store.Answer{},
		sick:    cfg.Sick,
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
	OnCampaign  EventKind = iota + 1 // Group, Once: somebody waits to lead it
	OnWithdraw                       // Group: nobody waits any longer
	OnEnded                          // Group, Token, Cause: ended on the holder's side
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
	// Session of To, if it is known: it saves a look at the line.
	Session store.SessionID
	Cause   error
	View    *store.View
	Reply   *Reply

	Stream uint64 // the shell's: which watch it is from
}

// ActionKind says what to do.
type ActionKind uint8

// The actions.
const (
	DoCall    ActionKind = iota + 1 // Call: ask the store, answer with OnReply
	DoWatch                         // start watching the scope
	DoTrust                         // Session is trusted until Until, and not at risk
	DoRisk                          // Session: keep-alives fail, trust will end
	DoBegin                         // Group, Record: a term begins
	DoEnd                           // Group, Token, Cause: the term ends
	DoFail                          // Group, Cause: the campaign is over without a term
	DoSettle                        // Group, Token, Cause: the release is done, or why not
	DoOverrun                       // Group, Token: work has not returned in time
	DoNote                          // Note: for people and metrics
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
	CallSessions // of a group, to find the successor of one transfer
	CallRead
	CallAnswer
	kinds
)

func (k CallKind) String() string {
	return [...]string{"?", "open", "keep-alive", "close", "acquire", "release", "sessions", "read", "answer"}[k]
}

// lane bounds the calls of one kind that are under way at once.
var lane = [kinds]int{CallOpen: 1, CallBeat: 1, CallClose: 4, CallAcquire: 4, CallRelease: 16, CallSessions: 4, CallRead: 8, CallAnswer: 4}

// Call asks the store. It is answered by one Reply with its ID, within Timeout.
type Call struct {
	ID      uint64
	Kind    CallKind
	Timeout time.Duration

	Session store.SessionID
	TTL     time.Duration   // open
	Attempt string          // open
	Groups  []string        // keep-alive
	Seen    []store.Record  // acquire; close: only if they are as seen
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

// Do asks the store and returns its answer. The candidate and the options are those of
// an Open; its attempt is the call's.
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

// errTimeout is the machine's own: the call was not answered in its time.
var errTimeout = errors.New("no answer in time")

// check turns an answer that does not fit its call into one of unknown outcome.
func (r *Reply) check(f *flight) {
	if (f.Kind == CallAcquire || f.Kind == CallRelease) && r.Err == nil && len(r.Records) != len(f.seats) {
		r.Err = fmt.Errorf("lease: the store answered %s of %d groups with %d records", f.Kind, len(f.seats), len(r.Records))
	}
}

// flight is a call under way. One that timed out stays for a while: a late
// answer to a keep-alive still counts from its sending.
type flight struct {
	*Call
	sent clock.Instant
	late bool
	// The closures would allocate; these say whose call it is.
	session *session
	seats   []*seat
	request *store.Request // the sessions were asked for because of it
}

// Step takes what has happened by now and returns what to do, in order. The
// slice is valid until the next Step. What has run out comes before the events:
// it cannot be saved by an answer that was read too late.
func (m *Machine) Step(now clock.Instant, events ...Event) []Action {
	if m.started { // what New has to say comes first
		m.out = m.out[:0]
	}
	m.started = true
	m.now = max(m.now, now)
	if m.stopped {
		return nil
	}
	m.runOut()
	for i := range events {
		m.handle(&events[i])
	}
	m.due()
	return m.out
}

// Next is when Step must be called again if nothing happens.
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

// runOut ends what has run out.
func (m *Machine) runOut() {
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

// hung: a planted machine waits for its calls before it looks at its timers.
func (m *Machine) hung() bool { return m.cfg.Plant.Has(plant.HungCallBlocks) && len(m.calls) > 0 }

// due does what it is time for.
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
		m.campaign(m.seat(e.Group), e.Once)
	case OnWithdraw:
		m.withdraw(m.seat(e.Group))
	case OnEnded:
		m.ended(m.seat(e.Group), e.Token, e.Cause)
	case OnReturned:
		m.returned(m.seat(e.Group), e.Token, e.To, e.Session)
	case OnHealth:
		m.health(e.Cause)
	case OnShutdown:
		m.shutdown()
	case OnReply:
		m.reply(e.Reply)
	case OnView:
		m.observed(e.View)
	case OnWatchLost:
		m.watchLost(e.Cause)
	}
}

func (m *Machine) do(a Action) { m.out = append(m.out, a) }

func (m *Machine) note(n Note) { m.do(Action{Kind: DoNote, Note: n}) }

// send starts a call. The caller has made sure that its lane has room.
func (m *Machine) send(c *Call, s *session, seats ...*seat) {
	m.nextID++
	c.ID = m.nextID
	c.Timeout = m.cfg.Timing.CallTimeout
	m.lanes[c.Kind]++
	m.calls = append(m.calls, &flight{Call: c, sent: m.now, session: s, seats: seats})
	m.do(Action{Kind: DoCall, Call: c})
}

func (m *Machine) room(k CallKind) bool { return m.lanes[k] < lane[k] }

// timeOut treats calls without an answer as calls of unknown outcome, so that
// one that hangs holds nothing up.
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
			m.lanes[f.Kind]--
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
	m.lanes[f.Kind]--
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
		m.beaten(f, r)
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
		// A lost answer is asked for again by the next beat.
	}
}

// late handles the answer to a call that was given up. What it says is still
// true, if it is definite.
func (m *Machine) late(f *flight, r *Reply) {
	r.check(f)
	switch {
	case f.Kind == CallBeat:
		m.beaten(f, r)
	case f.Kind == CallOpen && r.Err == nil && f.Attempt == m.attemptName() && !m.opening && m.session == nil:
		// Take it now. If a retry is under way, it returns this same session; if one has
		// returned it before, the session is known, and its work must not be cut short.
		m.opened(f, r)
	case f.Kind == CallAcquire && r.Err == nil:
		m.won(f, r)
	}
}

// backoff is exponential with full jitter.
func (m *Machine) backoff(fails int) time.Duration {
	return m.backoffUpTo(fails, m.cfg.Timing.BackoffMax)
}

// pause is the backoff of what every candidate does after an outage: to open a session
// and to watch. It grows with the number of candidates, to a Step for each,
// so that they do not keep the engine from answering any of them. The first one to come
// through leads; with few candidates it is BackoffMax at most.
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

// step is how long each candidate in line waits for the one before it: long
// enough for that one's commit to be seen, as far as we have seen commits.
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
		if s.linger != nil || s.hold != nil && !s.hold.returned {
			groups = append(groups, s.group)
		}
	}
	return groups
}
