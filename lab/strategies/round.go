package strategies

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
)

// Cell is a strategy under a fault.
type Cell struct {
	Strategy string        `json:"strategy"`
	Fault    string        `json:"fault"`
	Fence    bool          `json:"fence"`
	Nodes    int           `json:"nodes"`
	TTL      time.Duration `json:"ttl"`
	Seed     uint64        `json:"seed"`
}

// Round is what one round of a cell showed.
type Round struct {
	Cell
	Round int `json:"round"`
	// Believers is how many believed at once at most, Both for how long more than one did.
	Believers int           `json:"believers"`
	Both      time.Duration `json:"both"`
	// Accepted and Refused are the stale writes.
	Accepted int `json:"stale_accepted"`
	Refused  int `json:"stale_refused"`
	// Failover is from the fault to the next leader; 0: there was none.
	Failover time.Duration `json:"failover"`
	// Election is how many messages the survivors sent until the next one led, Rest how many all
	// send in a second at rest.
	Election int64   `json:"election"`
	Rest     float64 `json:"rest"`
	// Left is how many believed when the fault had lasted for its time.
	Left int `json:"left"`
}

// errNoEffect is a fault that left no evidence.
var errNoEffect = errors.New("the fault had no effect")

type round struct {
	*fleet
	Round
	rng *rand.Rand
	// patience is how long the next leader may take, hold how long a fault lasts after it.
	patience, hold time.Duration
	old            *proc
	at             clock.Instant
}

// play plays one round of a cell.
func (a *arena) play(ctx context.Context, c Cell, number int, patience time.Duration) (result Round, err error) {
	ft, err := findFault(c.Fault)
	if err != nil {
		return Round{}, err
	}
	f, err := a.start(ctx, options{nodes: c.Nodes, ttl: c.TTL, fence: c.Fence})
	if err != nil {
		return Round{}, err
	}
	defer f.stop()
	r := &round{
		fleet: f, Round: Round{Cell: c, Round: number}, patience: patience, hold: c.TTL,
		rng: rand.New(rand.NewPCG(c.Seed, uint64(number))),
	}
	if r.old = f.leader(ctx, time.Minute); r.old == nil {
		return Round{}, fmt.Errorf("%s elects no single leader: %v", c.Strategy, f.log())
	}
	pause(ctx, c.TTL/2+time.Duration(r.rng.Int64N(int64(c.TTL/2))))
	if err := r.rest(ctx); err != nil {
		return Round{}, err
	}
	if r.old = f.leader(ctx, time.Minute); r.old == nil {
		return Round{}, fmt.Errorf("%s keeps no leader: %v", c.Strategy, f.log())
	}
	r.at = now()
	if err := errors.Join(ft.inject(r, ctx), context.Cause(ctx)); err != nil {
		return Round{}, fmt.Errorf("%s, %s: %w", c.Strategy, c.Fault, err)
	}
	r.Believers, r.Both = f.believers(r.at)
	f.mu.Lock()
	defer f.mu.Unlock()
	r.Accepted, r.Refused = f.accepted, f.refused
	return r.Round, nil
}

// rest measures the messages of a fleet that is left alone.
func (r *round) rest(ctx context.Context) error {
	began := now()
	b1, o1, err := r.count(ctx, r.procs)
	if err != nil {
		return err
	}
	pause(ctx, r.TTL)
	b2, o2, err := r.count(ctx, r.procs)
	r.Rest = float64(b2+o2-b1-o1) / now().Sub(began).Seconds()
	return err
}

// next waits for another leader, and counts what it cost the others.
func (r *round) next(ctx context.Context, strike func() error) error {
	survivors := r.except(r.old)
	_, before, err := r.count(ctx, survivors)
	if err != nil {
		return err
	}
	r.at = now()
	if err := strike(); err != nil {
		return err
	}
	if !r.await(ctx, r.patience, func() bool {
		i := slices.IndexFunc(r.terms, func(t *term) bool { return t.began > r.at && t.node != r.old.id })
		if i >= 0 {
			r.Failover = r.terms[i].began.Sub(r.at)
		}
		return i >= 0
	}) {
		return context.Cause(ctx)
	}
	_, after, err := r.count(ctx, survivors)
	r.Election = after - before
	return err
}

// left counts those who still believe.
func (r *round) left() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Left = 0
	for _, p := range r.procs {
		if p.run != nil && p.term != nil && p.term.ended == 0 {
			r.Left++
		}
	}
}

func (r *round) kill(ctx context.Context) error {
	err := r.next(ctx, func() error { r.fleet.kill(r.old); return nil })
	r.left()
	return err
}

func (r *round) pause(ctx context.Context) error {
	if err := r.next(ctx, func() error { return r.fleet.pause(ctx, r.old) }); err != nil {
		return err
	}
	if at := r.old.run.Cmd.Process.Pid; !child.Paused(at) {
		return errNoEffect
	}
	pause(ctx, r.TTL*3/2-now().Sub(r.at)) // at least beyond the lease
	if err := r.resume(r.old); err != nil {
		return err
	}
	// It has gone on when it answers.
	if _, _, err := r.count(ctx, []*proc{r.old}); err != nil {
		return err
	}
	pause(ctx, r.hold)
	r.left()
	return nil
}

// everybody is all targets of a link, or all candidates.
func ids(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// isolate cuts off some candidates. far are the targets that they lose.
func (r *round) isolate(near, far []int) {
	r.cut(near, far, enginetest.Up, enginetest.Down)
	if r.a.engine == peers {
		r.cut(far, near, enginetest.Up, enginetest.Down)
	} else { // the others lose the servers on the near side
		var servers []int
		for k := range r.a.addrs {
			if !slices.Contains(far, k) {
				servers = append(servers, k)
			}
		}
		var others []int
		for _, p := range r.procs {
			if !slices.Contains(near, p.id) {
				others = append(others, p.id)
			}
		}
		r.cut(others, servers, enginetest.Up, enginetest.Down)
	}
}

func (r *round) without(id int) []int {
	return slices.DeleteFunc(ids(r.Nodes), func(i int) bool { return i == id })
}

// far is what a candidate loses when it is alone.
func (r *round) far(id int) []int {
	if r.a.engine == peers {
		return r.without(id)
	}
	return ids(len(r.a.addrs))
}

// during cuts, waits for the next leader, holds the cut, and heals.
func (r *round) during(ctx context.Context, cut func()) error {
	if err := r.next(ctx, func() error { cut(); return nil }); err != nil {
		return err
	}
	pause(ctx, r.hold)
	r.left()
	if r.held() == 0 {
		return errNoEffect
	}
	r.fleet.heal()
	return nil
}

func (r *round) minority(ctx context.Context) error {
	return r.during(ctx, func() { r.isolate([]int{r.old.id}, r.far(r.old.id)) })
}

func (r *round) split(ctx context.Context) error {
	others := r.without(r.old.id)
	near := []int{r.old.id, others[r.rng.IntN(len(others))]}
	far := slices.DeleteFunc(others, func(i int) bool { return i == near[1] })
	if r.a.engine != peers {
		far = ids(len(r.a.addrs))[len(r.a.addrs)*2/5:] // the near side has two of five, one of three, none of one
	}
	return r.during(ctx, func() { r.isolate(near, far) })
}

func (r *round) oneWay(ctx context.Context) error {
	return r.during(ctx, func() {
		me := []int{r.old.id}
		if r.a.engine == peers {
			r.cut(me, r.far(r.old.id), enginetest.Up)
			r.cut(r.far(r.old.id), me, enginetest.Down)
			return
		}
		r.cut(me, r.far(r.old.id), enginetest.Down)
	})
}

func (r *round) heal(ctx context.Context) error {
	if err := r.next(ctx, func() error { r.isolate([]int{r.old.id}, r.far(r.old.id)); return nil }); err != nil {
		return err
	}
	if r.held() == 0 {
		return errNoEffect
	}
	// From here on it is measured.
	r.mu.Lock()
	r.at, r.accepted, r.refused = now(), 0, 0
	r.mu.Unlock()
	r.fleet.heal()
	pause(ctx, r.hold)
	r.left()
	return nil
}

func (r *round) churn(ctx context.Context) error {
	const kills = 3
	var slowest time.Duration
	var messages int64
	begun := now()
	for range kills {
		if err := r.next(ctx, func() error { r.fleet.kill(r.old); return nil }); err != nil {
			return err
		}
		none := r.Failover == 0
		slowest = max(slowest, r.Failover)
		messages += r.Election
		if err := r.restart(ctx, r.old); err != nil {
			return err
		}
		next := r.leader(ctx, r.patience)
		if none || next == nil {
			slowest = 0
			break
		}
		r.old, r.Failover = next, 0
	}
	r.at, r.Failover, r.Election = begun, slowest, messages/kills
	r.left()
	return nil
}

func (r *round) member(ctx context.Context) error {
	restart := r.a.kill(r.rng.IntN(len(r.a.addrs)))
	defer restart()
	pause(ctx, 2*r.hold)
	r.left()
	return nil
}

func (r *round) noQuorum(ctx context.Context) error {
	r.cut(ids(r.Nodes), ids(len(r.links[0])), enginetest.Up, enginetest.Down)
	pause(ctx, 3*r.hold)
	r.left()
	if r.held() == 0 {
		return errNoEffect
	}
	r.fleet.heal()
	return nil
}
