package experiment

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"
)

// trialBatch is what trials share that are run at the same time, on one machine.
type trialBatch struct {
	// all is how many they are.
	all int
	// What disturbs the machine while they run; nil: nothing.
	disturbance *disturbance

	starting   sync.Mutex
	begin, end barrier
}

// turn lets fleets be started one after the other: each looks for ports that are free.
func (w *trialBatch) turn() (over func()) {
	if w == nil {
		return func() {}
	}
	w.starting.Lock()
	return w.starting.Unlock
}

// share marks trials as run together.
func share(d *disturbance, trials ...Trial) []Trial {
	w := &trialBatch{all: len(trials), disturbance: d}
	for i := range trials {
		trials[i].with = w
	}
	return trials
}

// barrier is where those who are together wait for each other.
type barrier struct {
	mu   sync.Mutex
	here int
	met  chan struct{}
	err  error
}

// wait waits until all are here. The last to come acts for all, before they go on; its
// error is everybody's.
func (g *barrier) wait(ctx context.Context, all int, act func() error) error {
	g.mu.Lock()
	if g.met == nil {
		g.met = make(chan struct{})
	}
	g.here++
	last := g.here == all
	g.mu.Unlock()
	if last {
		g.err = act()
		close(g.met)
	}
	select {
	case <-g.met:
		return g.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// batches are trials that follow each other: alone, or those that are together.
func batches(trials []Trial) (all [][]Trial) {
	for i, t := range trials {
		if i > 0 && t.with != nil && t.with == trials[i-1].with {
			all[len(all)-1] = append(all[len(all)-1], t)
			continue
		}
		all = append(all, []Trial{t})
	}
	return all
}

// keptBatch are the outcomes of a batch that was run before, if it was as a whole.
func keptBatch(kept map[string]Outcome, batch []Trial) (all []Outcome, ok bool) {
	for _, t := range batch {
		o, ok := kept[t.Name]
		if !ok {
			return nil, false
		}
		all = append(all, o)
	}
	return all, true
}

// args are what the nodes of a trial are told besides.
func (t Trial) args() (args []string) {
	if t.Engine == raftEngine {
		return []string{"--election-timeout", t.TTL.String()}
	}
	if t.Beat != 0 {
		args = append(args, "--renew-interval", t.Beat.String(), "--misses", strconv.Itoa(t.Misses))
	}
	// A node refuses a target that its lease alone would outgrow.
	const target, detect = 30, 9 // seconds, as the defaults are
	if t.TTL > detect*time.Second {
		args = append(args, "--rto", (t.TTL*target/detect + time.Second).String())
	}
	return args
}

var errOther = errors.New("a trial that runs at the same time has failed")

// runBatch runs trials at the same time; the first that fails ends the others.
func runBatch(ctx context.Context, trials []Trial, run func(context.Context, Trial) (Outcome, error)) ([]Outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	outcomes, errs := make([]Outcome, len(trials)), make([]error, len(trials))
	var wait sync.WaitGroup
	for i, t := range trials {
		wait.Go(func() {
			if outcomes[i], errs[i] = run(ctx, t); errs[i] != nil {
				cancel(errOther)
			}
			outcomes[i].Seconds /= float64(len(trials)) // its share
		})
	}
	wait.Wait()
	if w := trials[0].with; w != nil && w.disturbance != nil {
		w.disturbance.stop()
	}
	var first error
	for _, err := range errs {
		if err != nil && (first == nil || errors.Is(first, errOther)) {
			first = err
		}
	}
	return outcomes, first
}
