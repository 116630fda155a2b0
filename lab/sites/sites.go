// Package sites replays an outage with two sites, as on 21 October 2018 at GitHub: the site with
// the primary database is cut off for 43 s, the other site promotes its replica, and both accept
// writes. The databases are two real PostgreSQL servers with streaming replication through a
// proxy that can be cut.
//
// Without a fence a failover manager at the other site promotes the replica when it does not
// reach the primary, and replication is asynchronous. With the fence the primary is a leader that
// Tenure elects, each write carries its token and is acknowledged when the other site has it too,
// and the new leader seals before it writes.
//
// # Limitations
//
// The replay has one table, one writer at each site and one partition. It shows which writes
// diverge; it does not estimate how long a repair takes.
package sites

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/pgxfence"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lab/plot"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/engines"
	"github.com/tenurehq/tenure/store"
)

// Replay is the configuration of a replay.
type Replay struct {
	// Cut is how long the sites are cut off from each other: 43 s in the incident. The cut lasts
	// longer if the other site has not taken over by then.
	Cut   time.Duration
	Fence bool
	Say   func(string)
}

// The parts of the cut: how long a failover manager waits, and the TTL with a fence.
const (
	detectShare = 4
	leastTTL    = 2 * time.Second
	rate        = 20 * time.Millisecond // between two writes of a site
	callTimeout = time.Second
)

// Site is what one site has done.
type Site struct {
	// Acknowledged were confirmed to the caller. Lost of them are not in the surviving database.
	Acknowledged, Lost int
	// Unknown writes were never acknowledged, Refused ones were refused by the fence.
	Unknown, Refused int
	// First and Last are when the first and the last write were acknowledged after the cut began.
	First, Last time.Duration
}

// Result is what a replay showed.
type Result struct {
	Fence bool
	// Lasted is how long the sites were cut off, Elected when the other site led.
	Lasted, Elected time.Duration
	East, West      Site
	// Both is for how long both sites acknowledged writes.
	Both time.Duration
}

// site writes to the database of its site, or after the outage to the surviving one.
type site struct {
	name  string
	group string

	mu      sync.Mutex
	addr    string // of the database; empty: it does not write
	term    *tenure.Term
	stamp   fence.Stamp
	changed chan struct{}
	acked   []string
	from    int // index of the first write since the cut
	at      []clock.Instant
	Site
}

func now() clock.Instant { return clock.System().Now() }

func url(addr string) string { return "postgres://tenure@" + addr + "/postgres?sslmode=disable" }

func exec(ctx context.Context, addr string, statements ...string) error {
	conn, err := pgx.Connect(ctx, url(addr))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// write writes rows until ctx ends. A write is one transaction, with the fence if there is a
// stamp.
func (s *site) write(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		s.mu.Lock()
		addr, stamp := s.addr, s.stamp
		s.mu.Unlock()
		if addr != "" {
			s.note(s.once(ctx, addr, stamp, fmt.Sprintf("%s-%d", s.name, n)))
		}
		select {
		case <-time.After(rate):
		case <-ctx.Done():
		}
	}
}

func (s *site) once(ctx context.Context, addr string, stamp fence.Stamp, id string) (acked string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url(addr))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if stamp.Token > 0 {
			if err := pgxfence.Guard(ctx, tx, s.group, stamp); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "INSERT INTO events VALUES ($1)", id)
		return err
	})
	return id, err
}

func (s *site) note(id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var stale *fence.StaleError
	switch {
	case err == nil:
		s.acked, s.at = append(s.acked, id), append(s.at, now())
	case errors.As(err, &stale):
		s.Refused++
	default:
		s.Unknown++
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until a site has done something.
func (s *site) await(ctx context.Context, what string, holds func() bool) error {
	for {
		s.mu.Lock()
		ok, changed := holds(), s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s: %s: %w", s.name, what, context.Cause(ctx))
		}
	}
}

// some is how many writes of a site are enough to see that it writes.
const some = 10

func (s *site) writes(ctx context.Context, what string) error {
	s.mu.Lock()
	want := len(s.acked) + some
	s.mu.Unlock()
	return s.await(ctx, what, func() bool { return len(s.acked) >= want })
}

// world is the two sites with their databases.
type world struct {
	Replay
	east, west     *site
	primary        string
	standby        string
	link           *enginetest.Proxy // of replication, and of the failover manager
	engine         string            // for the west
	eastEngine     *enginetest.Proxy
	electors       []tenure.Elector
	closeElectors  []func()
	cutAt, elected clock.Instant
	healed         clock.Instant
}

// Run replays the outage.
func (r Replay) Run(ctx context.Context) (result Result, err error) {
	w := &world{Replay: r}
	stop, err := servertest.Run(func(t testing.TB) { w.start(ctx, t) })
	if err != nil {
		return result, err
	}
	defer stop()
	writing, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	defer func() {
		for _, c := range w.closeElectors {
			c()
		}
	}()
	if err := w.lead(ctx); err != nil {
		return result, err
	}
	all.Go(func() { w.east.write(writing) })
	all.Go(func() { w.west.write(writing) })
	if err := w.east.writes(ctx, "write before the outage"); err != nil {
		return result, err
	}
	if err := w.outage(ctx); err != nil {
		return result, err
	}
	end()
	all.Wait()
	return w.result(ctx)
}

func (w *world) start(ctx context.Context, t testing.TB) {
	must := func(err error) {
		if err != nil {
			t.Fatalf("start two sites: %v", err)
		}
	}
	primary := servertest.Postgres(t)
	must(exec(ctx, primary.Addr(), "CREATE TABLE events (id text PRIMARY KEY)"))
	conn, err := pgx.Connect(ctx, primary.URL())
	must(err)
	must(errors.Join(pgxfence.Migrate(ctx, conn), conn.Close(ctx)))
	standby := primary.Standby()
	w.link = enginetest.NewProxy(t, primary.Addr())
	w.primary, w.standby = primary.Addr(), standby.Addr()
	host, port, err := net.SplitHostPort(w.link.Addr())
	must(err)
	must(exec(ctx, w.standby, fmt.Sprintf("ALTER SYSTEM SET primary_conninfo = 'host=%s port=%s user=tenure application_name=west'", host, port), "SELECT pg_reload_conf()"))
	w.east = &site{name: "east", group: "primary", changed: make(chan struct{})}
	w.west = &site{name: "west", group: "primary", changed: make(chan struct{})}
	if w.Fence {
		// A write is acknowledged when the other site has it. The standby has no such setting: when
		// it is promoted it writes alone.
		must(exec(ctx, w.primary, "ALTER SYSTEM SET synchronous_standby_names = 'west'", "SELECT pg_reload_conf()"))
		engine := enginetest.Cluster(t, 1)
		w.engine = engine.Members[0].Addr()
		w.eastEngine = enginetest.NewProxy(t, w.engine)
	}
}

// ttl of the lease, with a fence.
func (w *world) ttl() time.Duration { return max(leastTTL, w.Cut/detectShare) }

// elector opens the elector of a site.
func (w *world) elector(ctx context.Context, name, addr string) (tenure.Elector, error) {
	st, err := engines.Open(ctx, "etcd://"+addr, engines.Options{})
	if err != nil {
		return nil, err
	}
	node, err := lease.New(st, lease.Config{
		Candidate: tenure.Candidate{ID: name}, Scope: store.Scope{w.east.group}, Timing: lease.Timing{TTL: w.ttl()}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		st.Close()
		return nil, err
	}
	w.closeElectors = append(w.closeElectors, func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		_ = node.Close(closing) // the engine may be cut off
		st.Close()
	})
	return node.Elector(w.east.group)
}

// lead lets the east lead.
func (w *world) lead(ctx context.Context) error {
	if !w.Fence {
		w.east.addr = w.primary
		return nil
	}
	for _, e := range []struct{ name, addr string }{{"east", w.eastEngine.Addr()}, {"west", w.engine}} {
		elector, err := w.elector(ctx, e.name, e.addr)
		if err != nil {
			return err
		}
		w.electors = append(w.electors, elector)
	}
	term, err := w.electors[0].Campaign(ctx)
	if err != nil {
		return err
	}
	w.east.term, w.east.stamp, w.east.addr = term, term.Stamp(), w.primary
	return nil
}

// takeOver waits until the west may lead, promotes its database, and lets it write.
func (w *world) takeOver(ctx context.Context) error {
	var stamp fence.Stamp
	if w.Fence {
		term, err := w.electors[1].Campaign(ctx)
		if err != nil {
			return err
		}
		stamp = term.Stamp()
	} else if err := w.noPrimary(ctx); err != nil {
		return err
	}
	if err := exec(ctx, w.standby, "SELECT pg_promote(true, 60)"); err != nil {
		return fmt.Errorf("promote the replica: %w", err)
	}
	w.elected = now()
	w.Say("the other site leads, and its replica is promoted")
	w.west.mu.Lock()
	w.west.stamp, w.west.addr = stamp, w.standby
	w.west.mu.Unlock()
	return nil
}

// noPrimary is the failover manager: it returns when it has not reached the primary for a while.
func (w *world) noPrimary(ctx context.Context) error {
	reached := time.Now()
	for time.Since(reached) < w.Cut/detectShare {
		try, cancel := context.WithTimeout(ctx, w.Cut/detectShare/2)
		if exec(try, w.link.Addr(), "SELECT 1") == nil {
			reached = time.Now()
		}
		cancel()
		select {
		case <-time.After(w.Cut / detectShare / 4):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// outage cuts the sites off from each other, lets the west take over, and heals.
func (w *world) outage(ctx context.Context) error {
	taking, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- w.takeOver(taking) }()
	for _, s := range []*site{w.east, w.west} {
		s.mu.Lock()
		s.from, s.Unknown = len(s.acked), 0
		s.mu.Unlock()
	}
	w.cutAt = now()
	w.link.Cut()
	if w.Fence {
		w.eastEngine.Cut()
	}
	w.Say("the sites are cut off from each other")
	if err := <-failed; err != nil {
		return err
	}
	if err := w.west.writes(ctx, "write after the promotion"); err != nil {
		return err
	}
	if !w.Fence {
		if err := w.east.writes(ctx, "go on writing"); err != nil {
			return err
		}
	} else if err := w.east.await(ctx, "attempt to write", func() bool { return w.east.Unknown > 0 }); err != nil {
		return err
	}
	select {
	case <-time.After(w.Cut - now().Sub(w.cutAt)):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	w.healed = now()
	w.link.Heal()
	if w.Fence {
		w.eastEngine.Heal()
	}
	w.Say("the sites reach each other again; callers of both use the promoted database")
	w.east.mu.Lock()
	w.east.addr = w.standby
	w.east.mu.Unlock()
	if w.Fence {
		// It ignores that its term has ended, and tries with its old token.
		return w.east.await(ctx, "a late write", func() bool { return w.east.Refused >= some })
	}
	return w.east.writes(ctx, "write to the promoted database")
}

// result compares what the callers were told with what the surviving database has.
func (w *world) result(ctx context.Context) (r Result, err error) {
	r = Result{Fence: w.Fence, Lasted: w.healed.Sub(w.cutAt), Elected: w.elected.Sub(w.cutAt)}
	conn, err := pgx.Connect(ctx, url(w.standby))
	if err != nil {
		return r, err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, "SELECT id FROM events")
	if err != nil {
		return r, err
	}
	survived, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return r, err
	}
	has := map[string]bool{}
	for _, id := range survived {
		has[id] = true
	}
	for _, s := range []*site{w.east, w.west} {
		s.mu.Lock()
		for i := s.from; i < len(s.acked); i++ {
			if s.First == 0 {
				s.First = s.at[i].Sub(w.cutAt)
			}
			s.Last = s.at[i].Sub(w.cutAt)
			s.Acknowledged++
			if !has[s.acked[i]] {
				s.Lost++
			}
		}
		s.mu.Unlock()
	}
	r.East, r.West = w.east.Site, w.west.Site
	if r.East.Lost > 0 {
		lost := slices.DeleteFunc(slices.Clone(w.east.at[w.east.from:]), func(at clock.Instant) bool { return at.Sub(w.cutAt) > r.Lasted })
		if len(lost) > 0 {
			r.Both = max(0, min(lost[len(lost)-1].Sub(w.cutAt), r.Lasted)-r.West.First)
		}
	}
	return r, nil
}

// Figure draws who acknowledged writes.
func (r Result) Figure() (*plot.Figure, error) {
	length := max(r.East.Last, r.West.Last, r.Lasted) + time.Second
	t := plot.Timeline{
		Note:   fmt.Sprintf("Two PostgreSQL servers at two sites, cut off for %v; %d acknowledged writes of the east are not in the surviving database", r.Lasted.Round(time.Millisecond), r.East.Lost),
		Length: length, Unfenced: !r.Fence,
		Faults: []plot.Shade{{Name: "cut", From: 0, To: r.Lasted}},
	}
	add := func(name string, token uint64, s Site) {
		if s.Acknowledged > 0 {
			t.Effect = append(t.Effect, plot.Stretch{Node: name, Token: token, From: s.First, To: s.Last})
		}
	}
	add("east", 1, r.East)
	add("west", 2, r.West)
	return t.Figure()
}

// String says what happened.
func (r Result) String() string {
	how := "off"
	if r.Fence {
		how = "on"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "fence %s: cut off for %v, the other site led after %v\n", how, r.Lasted.Round(time.Millisecond), r.Elected.Round(time.Millisecond))
	for _, s := range []struct {
		name string
		Site
	}{{"east", r.East}, {"west", r.West}} {
		fmt.Fprintf(&b, "  %s: %d writes acknowledged, %d of them not in the surviving database; %d never acknowledged, %d refused by the fence\n", s.name, s.Acknowledged, s.Lost, s.Unknown, s.Refused)
	}
	return b.String()
}
