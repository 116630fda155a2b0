package placement

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// Config of a machine. All fields but Max and Plant are required.
type Config struct {
	Set      string
	Count    int
	Max      int // shards that this process owns at most; 0: no limit
	MaxMoves int // shards that it hands over at a time
	Settle   time.Duration
	Self     string // this process's candidate
	Seed     uint64 // of its random pauses
	// Sessions lists the living sessions of the set's candidates, as far as the process knows.
	Sessions func() []store.Session
	Rules    *Rules
	Plant    plant.Set
}

// EventKind says what happened.
type EventKind uint8

// The events.
const (
	OnBegin    EventKind = iota // the process begins to run the set
	OnWon                       // Shard: a campaign has succeeded
	OnFailed                    // Shard, Retry: a campaign has ended without a term
	OnReturned                  // Shard, Early: work has returned
	OnGiven                     // Shard: the action DoGive is done, or has failed
	OnRules                     // Rules have been read
	OnTick                      // every quarter of Settle
	OnStop                      // give up everything
)

// Event is something that happened.
type Event struct {
	Kind  EventKind
	Shard int
	Retry bool // not withdrawn: campaign again after a second
	Early bool // work returned before it was told to end
	Rules *Rules
}

// ActionKind says what to do.
type ActionKind uint8

// The actions.
const (
	DoStand    ActionKind = iota // campaign for the shard
	DoWithdraw                   // end the campaign
	DoWork                       // begin the work of the shard
	DoEnd                        // tell the work to end; To is the candidate that the shard moves to, if it moves
	DoGive                       // hand the shard over to To, or resign if To is ""
)

// Action is something to do, in the order of the actions.
type Action struct {
	Kind  ActionKind
	Shard int
	To    string
}

// Machine decides for one process. It is not safe for concurrent use.
type Machine struct {
	cfg      Config
	rules    *Rules
	rand     *rand.Rand
	now      clock.Instant
	out      []Action
	born     map[store.SessionID]clock.Instant // when a session was first seen here
	shards   []shard
	owns     int // shards with a term
	stands   int // campaigns
	moves    int // shards that are handed over and count as one of MaxMoves
	stopping bool
	wrong    []int         // shards that should move, as of the last tick
	progress clock.Instant // while stopping: when a move last began or ended
}

// shard is what the process knows of a shard.
type shard struct {
	standing bool
	owned    bool
	since    clock.Instant // when the term began
	ending   bool          // its work was told to end, or has returned
	to       string        // the candidate that it is moved to
	slot     bool          // it counts as one of the moves
	pause    clock.Instant // no campaign before
	moved    clock.Instant // when it was moved last
	stay     time.Duration // how long it stays at least; longer if it came back
	fails    int
}

const (
	// maxStay limits how long a shard stays with an owner that is not the first.
	maxStay = 10 * time.Minute
	// returns is within how many stays a shard must be back to stay longer: each of so many
	// processes that disagree may have had it in between.
	returns = 8
	// patience is how long a process that stops waits for work before it ends all other work too.
	patience = time.Second
)

// New returns the machine of a process.
func New(cfg Config) *Machine {
	return &Machine{
		cfg: cfg, rules: cfg.Rules, rand: rand.New(rand.NewPCG(cfg.Seed, 0)),
		born: map[store.SessionID]clock.Instant{}, shards: make([]shard, cfg.Count),
	}
}

// Step takes an event at a time, and returns what to do.
func (m *Machine) Step(now clock.Instant, e Event) []Action {
	m.now, m.out = now, nil
	switch e.Kind {
	case OnBegin:
		m.standAll()
	case OnWon:
		m.won(e.Shard)
	case OnFailed:
		m.failed(e.Shard, e.Retry)
	case OnReturned:
		m.returned(e.Shard, e.Early)
	case OnGiven:
		m.given(e.Shard)
	case OnRules:
		m.rules = e.Rules
	case OnTick:
		m.tick()
	case OnStop:
		m.stopping, m.progress = true, now
		m.withdrawAll()
		m.stopMore()
	}
	return m.out
}

// Done reports whether a process that stops has given up everything.
func (m *Machine) Done() bool { return m.stopping && m.owns == 0 && m.stands == 0 }

// Full reports whether the process owns as many shards as it may.
func (m *Machine) Full() bool { return m.over(m.owns + 1) }

// Owns reports how many shards the process owns, and how many of them it is handing over.
func (m *Machine) Owns() (owned, moving int) { return m.owns, m.moves }

func (m *Machine) do(kind ActionKind, i int, to string) {
	m.out = append(m.out, Action{Kind: kind, Shard: i, To: to})
}

// over reports whether owns is more than Max.
func (m *Machine) over(owns int) bool {
	return m.cfg.Max > 0 && owns > m.cfg.Max && !m.cfg.Plant.Has(plant.CapIgnored)
}

func (m *Machine) stand(i int) {
	if s := &m.shards[i]; !m.stopping && !s.standing && !s.owned && m.now >= s.pause && !m.Full() {
		s.standing = true
		m.stands++
		m.do(DoStand, i, "")
	}
}

func (m *Machine) standAll() {
	for i := range m.shards {
		m.stand(i)
	}
}

// withdrawAll ends all campaigns: the process is full, or stops.
func (m *Machine) withdrawAll() {
	for i := range m.shards {
		if m.shards[i].standing {
			m.do(DoWithdraw, i, "")
		}
	}
}

func (m *Machine) won(i int) {
	s := &m.shards[i]
	s.standing, s.owned, s.ending, s.since, s.to = false, true, false, m.now, ""
	m.stands--
	m.owns++
	if s.stay > 0 && s.since.Sub(s.moved) <= returns*s.stay && !m.cfg.Plant.Has(plant.StayFixed) {
		s.stay = min(2*s.stay, maxStay) // the candidate that it was moved to has given it back
	} else {
		s.stay = m.cfg.Settle
	}
	if m.stopping || m.over(m.owns) { // the sender did not know yet
		m.give(i)
		return
	}
	m.do(DoWork, i, "")
	if m.Full() {
		m.withdrawAll()
	}
}

func (m *Machine) failed(i int, retry bool) {
	m.shards[i].standing = false
	m.stands--
	if retry {
		m.shards[i].pause = m.now.Add(time.Second)
	}
}

func (m *Machine) returned(i int, early bool) {
	s := &m.shards[i]
	if !s.owned {
		return
	}
	if s.fails++; !early || s.ending {
		s.fails = 0
	} else {
		s.pause = m.now.Add(m.backoff(s.fails))
	}
	m.give(i)
}

func (m *Machine) backoff(fails int) time.Duration {
	most := min(200*time.Millisecond<<min(fails, 10), 30*time.Second)
	return most/2 + time.Duration(m.rand.Int64N(int64(most/2)))
}

// give hands over a shard whose work has returned.
func (m *Machine) give(i int) {
	s := &m.shards[i]
	s.ending = true
	if s.to == "" {
		s.to = m.first(i, m.settled(m.cfg.Sessions()), m.cfg.Self)
	}
	m.do(DoGive, i, s.to)
}

func (m *Machine) given(i int) {
	s := &m.shards[i]
	if !s.owned {
		return
	}
	if s.slot {
		m.moves--
		m.progress = m.now
	}
	s.owned, s.slot, s.to = false, false, ""
	m.owns--
	m.stand(i)
	if m.cfg.Max > 0 {
		m.standAll() // the process was full
	}
	if m.stopping {
		m.stopMore()
	} else {
		m.moveMore()
	}
}

func (m *Machine) tick() {
	line := m.cfg.Sessions()
	born := make(map[store.SessionID]clock.Instant, len(line))
	for _, s := range line {
		first, known := m.born[s.ID]
		if !known {
			first = m.now
		}
		born[s.ID] = first
	}
	m.born = born
	if m.stopping {
		m.stopMore()
		return
	}
	m.wrong = m.wrong[:0]
	settled := m.settled(line)
	for i := range m.shards {
		if m.better(i, settled) != "" {
			m.wrong = append(m.wrong, i)
		}
	}
	m.moveMore()
	m.standAll()
}

// better returns the candidate to which a shard should move, or "".
func (m *Machine) better(i int, settled []store.Session) string {
	s := &m.shards[i]
	if !s.owned || s.ending || m.now.Sub(s.since) < s.stay && !m.cfg.Plant.Has(plant.MoveTwice) {
		return ""
	}
	if best := m.first(i, settled, ""); best != m.cfg.Self {
		return best
	}
	return ""
}

// moveMore begins to move shards to the candidates that should own them, at most MaxMoves at a time.
func (m *Machine) moveMore() {
	if len(m.wrong) == 0 {
		return
	}
	settled := m.settled(m.cfg.Sessions())
	for len(m.wrong) > 0 && m.moves < m.cfg.MaxMoves {
		i := m.wrong[0]
		m.wrong = m.wrong[1:]
		to := m.better(i, settled)
		if to == "" {
			continue
		}
		s := &m.shards[i]
		s.to, s.moved = to, m.now
		m.end(i, true)
		if m.cfg.Plant.Has(plant.MoveBeforeDrain) {
			m.do(DoGive, i, to)
		}
	}
}

// end tells the work of a shard to end.
func (m *Machine) end(i int, slot bool) {
	s := &m.shards[i]
	s.ending, s.slot = true, slot
	if slot {
		m.moves++
	}
	m.do(DoEnd, i, s.to)
}

// stopMore gives up shards, MaxMoves at a time. Work that does not return in time delays only its
// own shard.
func (m *Machine) stopMore() {
	slots := m.now.Sub(m.progress) < patience
	for i := range m.shards {
		if slots && m.moves >= m.cfg.MaxMoves {
			return
		}
		if s := &m.shards[i]; s.owned && !s.ending {
			m.end(i, slots)
			m.progress = m.now
		}
	}
}

// settled returns this process's own sessions and those that it has seen for Settle.
func (m *Machine) settled(line []store.Session) []store.Session {
	long := make([]store.Session, 0, len(line))
	for _, s := range line {
		first, known := m.born[s.ID]
		if known && m.now.Sub(first) >= m.cfg.Settle || s.Candidate.ID == m.cfg.Self || m.cfg.Plant.Has(plant.SettleIgnored) {
			long = append(long, s)
		}
	}
	return long
}

// first returns the candidate that should own a shard, or "" if there is none. It leaves out but.
func (m *Machine) first(i int, of []store.Session, but string) string {
	if pin := m.rules.Pins[i]; pin != "" && pin != but && m.cfg.Plant.Has(plant.PinAbsent) {
		return pin
	}
	if but != "" {
		of = slices.DeleteFunc(of, func(s store.Session) bool { return s.Candidate.ID == but })
	}
	return m.rules.First(m.cfg.Set, i, m.cfg.Self, of)
}
