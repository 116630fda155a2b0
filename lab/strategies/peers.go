package strategies

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// note is a message between candidates.
type note struct {
	Kind string
	From int
	// Round numbers elections, so that a candidate runs each of them once.
	Round int
	// IDs are those that an election has passed in the ring; of a coordinator: its id.
	IDs []int
}

const (
	noteBeat        = "beat"
	noteElection    = "election"
	noteOK          = "ok"
	noteCoordinator = "coordinator"
)

// peerGroup is Bully or Ring. Both elect the highest id that they reach, without a quorum: each
// part of a partition elects its own.
type peerGroup struct {
	Config
	sent *sent
	ring bool

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when the leader changes
	leader  int           // -1: unknown
	heard   time.Time     // of the leader
	patient time.Duration
	round   int // the latest election that this candidate has taken part in
	settled int // the latest election that has a result
	okayed  map[int]bool
	conns   []*peerConn
}

type peerConn struct {
	mu   sync.Mutex
	addr string
	conn net.Conn
}

func openPeers(ctx context.Context, c Config, n *sent) (Elector, error) {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, err
	}
	g := &peerGroup{Config: c, sent: n, ring: c.Strategy == "ring", changed: make(chan struct{}), leader: -1, okayed: map[int]bool{}}
	for _, addr := range c.Links {
		g.conns = append(g.conns, &peerConn{addr: addr})
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go g.accept(ctx, l)
	return g, nil
}

func (g *peerGroup) Close() {}

// Campaign waits until this candidate leads.
func (g *peerGroup) Campaign(ctx context.Context) (Term, error) {
	g.mu.Lock()
	if g.heard.IsZero() {
		g.hear(-1)
		if !g.Manual {
			go g.watch(ctx)
		}
	}
	g.mu.Unlock()
	for {
		g.mu.Lock()
		leads, changed := g.leader == g.ID, g.changed
		g.mu.Unlock()
		if leads {
			return Term{Believes: g.leads, Stop: func(context.Context) error {
				g.mu.Lock()
				defer g.mu.Unlock()
				if g.leader == g.ID {
					g.hear(-1)
				}
				return nil
			}}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Term{}, ctx.Err()
		}
	}
}

func (g *peerGroup) leads() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leader == g.ID
}

// hear notes a sign of life of a leader. The caller holds the lock.
func (g *peerGroup) hear(leader int) {
	if leader != g.leader {
		close(g.changed)
		g.changed = make(chan struct{})
	}
	g.leader, g.heard = leader, time.Now()
	// Candidates lose patience one after the other.
	g.patient = g.TTL + time.Duration(rand.Int64N(int64(g.beat())))
}

// watch sends the leader's beats, and begins an election when the leader is silent.
func (g *peerGroup) watch(ctx context.Context) {
	for pause(ctx, g.beat()/2) {
		g.mu.Lock()
		leads, silent := g.leader == g.ID, time.Since(g.heard) > g.patient
		g.mu.Unlock()
		switch {
		case leads:
			for _, to := range g.others() {
				go g.send(to, note{Kind: noteBeat})
			}
		case silent:
			g.Elect()
		}
	}
}

func (g *peerGroup) others() (ids []int) {
	for i := range g.Nodes {
		if i != g.ID {
			ids = append(ids, i)
		}
	}
	return ids
}

// Elect begins an election.
func (g *peerGroup) Elect() {
	g.mu.Lock()
	g.heard = time.Now() // the next one begins when this one has had its time
	round := max(g.round, g.settled) + 1
	g.mu.Unlock()
	if !g.ring {
		g.bully(round)
		return
	}
	g.mu.Lock()
	g.round = round
	g.mu.Unlock()
	go g.pass(note{Kind: noteElection, Round: round, IDs: []int{g.ID}})
}

// bully takes part in an election, once: it asks all with a higher id, and leads if none answers.
func (g *peerGroup) bully(round int) {
	g.mu.Lock()
	if round <= g.round {
		g.mu.Unlock()
		return
	}
	g.round = round
	g.mu.Unlock()
	go func() {
		var asked sync.WaitGroup
		var mu sync.Mutex
		reached := false
		for to := g.ID + 1; to < g.Nodes; to++ {
			asked.Go(func() {
				if g.send(to, note{Kind: noteElection, Round: round}) {
					mu.Lock()
					reached = true
					mu.Unlock()
				}
			})
		}
		asked.Wait()
		if reached {
			time.Sleep(g.beat()) // for an answer: the leader of an election is told by a message
		}
		g.mu.Lock()
		wins := !g.okayed[round] && g.settled < round
		delete(g.okayed, round)
		if wins {
			g.settled = round
			g.hear(g.ID)
		}
		g.mu.Unlock()
		if wins {
			for to := range g.ID {
				go g.send(to, note{Kind: noteCoordinator, Round: round, IDs: []int{g.ID}})
			}
		}
	}()
}

// pass sends a message to the next candidate in the ring that takes it.
func (g *peerGroup) pass(x note) {
	for i := 1; i < g.Nodes; i++ {
		if g.send((g.ID+i)%g.Nodes, x) {
			return
		}
	}
	if x.Kind == noteElection { // alone
		g.mu.Lock()
		defer g.mu.Unlock()
		g.settled = max(g.settled, x.Round)
		g.hear(g.ID)
	}
}

// receive handles a message.
func (g *peerGroup) receive(x note) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch x.Kind {
	case noteBeat:
		g.follow(x.From)
	case noteOK:
		g.okayed[x.Round] = true
	case noteCoordinator:
		g.settled = max(g.settled, x.Round)
		g.follow(x.IDs[0])
		if origin := x.IDs[len(x.IDs)-1]; g.ring && origin != g.ID {
			go g.pass(x)
		}
	case noteElection:
		switch {
		case !g.ring:
			go g.send(x.From, note{Kind: noteOK, Round: x.Round})
			go g.bully(x.Round)
		case x.IDs[0] == g.ID: // it has been around
			winner := slices.Max(x.IDs)
			g.settled = max(g.settled, x.Round)
			g.follow(winner)
			go g.pass(note{Kind: noteCoordinator, Round: x.Round, IDs: []int{winner, g.ID}})
		default:
			x.IDs = append(x.IDs, g.ID)
			go g.pass(x)
		}
	}
}

// follow accepts a leader. A leader gives way to a higher one only; in Bully a lower one is not
// accepted.
func (g *peerGroup) follow(leader int) {
	switch {
	case leader >= g.ID:
		g.hear(leader)
	case g.leader == g.ID: // a lower one gives way when it hears this one
	case !g.ring:
		if !g.Manual && time.Since(g.heard) > g.beat() {
			go g.Elect()
		}
	default:
		g.hear(leader)
	}
}

// send sends a message and reports whether the other has taken it. A beat is not sent while the
// one before it is under way.
func (g *peerGroup) send(to int, x note) bool {
	x.From = g.ID
	p := g.conns[to]
	if x.Kind != noteBeat {
		g.sent.others.Add(1)
		p.mu.Lock()
	} else {
		if !p.mu.TryLock() {
			return false
		}
		g.sent.beats.Add(1)
	}
	defer p.mu.Unlock()
	err := p.exchange(x, g.beat())
	var timeout net.Error
	if err != nil && (!errors.As(err, &timeout) || !timeout.Timeout()) {
		err = p.exchange(x, g.beat()) // the connection was to a process that has been restarted
	}
	return err == nil
}

// exchange sends a message and reads one byte, which says that it was taken.
func (p *peerConn) exchange(x note, timeout time.Duration) (err error) {
	if p.conn == nil {
		if p.conn, err = net.DialTimeout("tcp", p.addr, timeout); err != nil {
			p.conn = nil
			return err
		}
	}
	err = p.conn.SetDeadline(time.Now().Add(timeout))
	if err == nil {
		err = json.NewEncoder(p.conn).Encode(x)
	}
	if err == nil {
		_, err = p.conn.Read(make([]byte, 1))
	}
	if err != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
	return err
}

func (g *peerGroup) accept(ctx context.Context, l net.Listener) {
	for ctx.Err() == nil {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		go func() {
			defer func() { _ = conn.Close() }()
			notes := json.NewDecoder(conn)
			for {
				var x note
				if notes.Decode(&x) != nil {
					return
				}
				g.receive(x)
				if _, err := conn.Write([]byte{'.'}); err != nil {
					return
				}
			}
		}()
	}
}
