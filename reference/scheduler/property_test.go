package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/fencedwriter"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/schedule"
	"github.com/tenurehq/tenure/reference/scheduler/outbox"
)

const workers = 2

// world has nodes with schedulers, and leaders that may not notice that they were replaced.
type world struct {
	t       *testing.T
	r       *rand.Rand
	l       *ledgerDouble
	nodes   []*Scheduler
	leaders []*leaderDouble // the last one leads
	token   fence.Token
	posted  map[string]ledgerapi.Job
	had     [workers]map[outbox.ID]bool // what each worker has received, and so done
	// excused may be done by two workers: a leader sent it and died before it was recorded, or no
	// longer led.
	excused map[outbox.ID]bool
	healed  bool
}

// leaderDouble is a term and its writer. Its writes or their answers may be lost, or another
// leader may take over in between.
type leaderDouble struct {
	*term
	w     *world
	token fence.Token
	over  bool
}

func (l *leaderDouble) Write(_ context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	if l.w.healed {
		return l.w.l.apply(l.token, writes)
	}
	switch l.w.r.IntN(12) {
	case 0:
		return ledgerapi.Answer{}, ledgerapi.ErrUnavailable
	case 1: // the request is lost
		return ledgerapi.Answer{}, ledgerapi.ErrUnknown
	case 2: // the answer is lost
		_, _ = l.w.l.apply(l.token, writes)
		return ledgerapi.Answer{}, ledgerapi.ErrUnknown
	case 3: // another leader takes over between the check and the write
		l.w.takeover()
	case 4: // another leader takes over between the write and its answer
		a, err := l.w.l.apply(l.token, writes)
		l.w.takeover()
		return a, err
	}
	return l.w.l.apply(l.token, writes)
}

// takeover makes another node the leader; the last leader does not notice.
func (w *world) takeover() {
	for _, f := range w.l.firings {
		if f.DeliveredMS == 0 {
			w.excused[outbox.ID{Job: f.Job, AtMS: f.AtMS}] = true
		}
	}
	w.succeed()
}

// lastDouble is the last writer of a leader that has ended its term.
type lastDouble struct{ *leaderDouble }

func (l lastDouble) Write(_ context.Context, writes ...ledgerapi.Write) (ledgerapi.Answer, error) {
	return l.w.l.apply(l.token, writes)
}

// handover stops the leader in order and starts the next one.
func (w *world) handover() {
	if l := w.leaders[len(w.leaders)-1]; !l.over {
		l.over = true
		l.leave(w.t.Context(), lastDouble{l})
		w.succeed()
		return
	}
	w.takeover()
}

func (w *world) succeed() {
	w.token++
	l := &leaderDouble{w: w, token: w.token}
	l.term = w.nodes[w.r.IntN(len(w.nodes))].newTerm(l, fence.Stamp{Deployment: "d", Group: "g", Token: w.token})
	if _, err := w.l.apply(w.token, nil); err != nil {
		w.t.Fatal(err)
	}
	if err := l.load(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.leaders = append(w.leaders, l)
}

// step makes a leader do one thing, as its goroutines would.
func (l *leaderDouble) step(what int) {
	ctx := l.w.t.Context()
	switch what {
	case 0, 1:
		next := nextTick(l.time.now(), l.cursor.TickMS, l.cfg.Tick.Milliseconds())
		if l.time.now() < next {
			return
		}
		err := l.tick(ctx, next)
		if fencedwriter.Stop(err) {
			l.over = true
		} else if err != nil {
			l.window.stale = true
		}
	case 2:
		if l.refresh(ctx) != nil {
			l.w.t.Error("a read failed")
		}
	case 3:
		l.deliver(l.w.r.IntN(workers), 5)
	case 5:
		l.d.outbox.Mark(l.w.r.IntN(workers), l.w.r.IntN(2) == 0)
	case 4:
		// Other goroutines of the leader run during the read.
		l.w.l.reading = func() {
			l.w.l.reading = nil
			if !l.over && l.w.r.IntN(2) == 0 {
				l.step(3)
				l.step(0)
			}
		}
		defer func() { l.w.l.reading = nil }()
		if l.d.outbox.WantsMore() {
			l.d.outbox.SetMore(false)
			left, err := l.d.fetchAll(ctx)
			if err != nil {
				l.w.t.Error(err)
			}
			if left {
				l.d.outbox.SetMore(true)
			}
		}
	}
}

// deliver acts as a lane and its worker.
func (l *leaderDouble) deliver(lane, most int) {
	batch := l.d.outbox.Take(lane, most)
	for _, f := range batch {
		if l.w.l.find(f.Job, f.AtMS) == nil {
			l.w.l.wrong = append(l.w.l.wrong, fmt.Sprintf("%s at %d was sent and never recorded", f.Job, f.AtMS))
		}
		if want := `{"of":"` + f.Job + `"}`; string(f.Payload) != want {
			l.w.l.wrong = append(l.w.l.wrong, fmt.Sprintf("%s was sent with %s", f.Job, f.Payload))
		}
		l.w.had[lane][f.ID()] = true
		if l.w.leaders[len(l.w.leaders)-1] != l {
			l.w.excused[f.ID()] = true
		}
	}
	l.d.outbox.Done(batch, fmt.Sprint("worker-", lane))
}

func (w *world) post() {
	specs := []string{"@every 1s", "@every 3s", "@every 7s", "* * * * *", "", "CRON_TZ=Europe/Berlin */2 * * * *"}
	key := fmt.Sprint("job-", len(w.posted))
	j := ledgerapi.Job{
		Key: key, Schedule: specs[w.r.IntN(len(specs))], NextMS: w.l.nowMS + w.r.Int64N(20_000),
		Misfire: []string{ledgerapi.MisfireAll, ledgerapi.MisfireOnce, ledgerapi.MisfireSkip}[w.r.IntN(3)],
	}
	if strings.HasSuffix(j.Schedule, "*") {
		spec, _ := schedule.Parse(j.Schedule)
		j.NextMS = spec.Next(j.NextMS)
	}
	w.posted[key] = j
	w.l.post(w.token, key, j.Schedule, j.Misfire, j.NextMS)
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1)), l: newLedgerDouble(), posted: make(map[string]ledgerapi.Job), excused: make(map[outbox.ID]bool)}
	for i := range w.had {
		w.had[i] = make(map[outbox.ID]bool)
	}
	w.l.nowMS += w.r.Int64N(1_000_000)
	for range 3 {
		s, err := New(Config{
			Ledger: w.l, Resource: "g", Clock: w.l, Log: slog.New(slog.DiscardHandler), Grace: 20 * time.Second,
			Window: time.Duration(2+w.r.IntN(9)) * time.Second, Firings: 25, WindowJobs: 25 + w.r.IntN(10),
			Outbox: 80 + w.r.IntN(50), Workers: []string{"http://127.0.0.1:1", "http://127.0.0.1:2"},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.l.grace = s.cfg.Grace.Milliseconds()
		w.nodes = append(w.nodes, s)
	}
	return w
}

func (w *world) run(steps int) {
	w.takeover()
	for range steps {
		switch w.r.IntN(40) {
		case 0:
			w.takeover()
		case 6:
			w.handover()
		case 1, 2:
			w.post()
		case 3, 4:
			if err := w.nodes[w.r.IntN(len(w.nodes))].Preload(w.t.Context()); err != nil {
				w.t.Fatal(err)
			}
		case 5:
			w.l.nowMS += w.r.Int64N(40_000) // nobody acts for a while
		}
		w.l.nowMS += w.r.Int64N(400)
		l := w.leaders[len(w.leaders)-1]
		if w.r.IntN(8) == 0 {
			l = w.leaders[w.r.IntN(len(w.leaders))] // possibly a stale one
		}
		if !l.over {
			l.step(w.r.IntN(6))
		}
	}
}

// fresh reports whether a firing is so new that it may not have arrived yet.
func (w *world) fresh(f *ledgerapi.Firing) bool { return w.l.nowMS-f.FiredMS < 4000 }

// late returns jobs that should have been fired, and firings that should have arrived.
func (w *world) late(bound int64) (all []string) {
	for _, j := range w.l.jobs {
		if late := w.l.nowMS - j.NextMS; late > bound {
			all = append(all, fmt.Sprintf("%s is %d ms late", j.Key, late))
		}
	}
	for _, f := range w.l.firings {
		if f.DeliveredMS == 0 && w.l.nowMS-f.FiredMS > bound+300 {
			all = append(all, fmt.Sprintf("%s at %d has not arrived", f.Job, f.AtMS))
		}
	}
	return all
}

func (w *world) calmStep() {
	w.l.nowMS += 100
	l := w.leaders[len(w.leaders)-1]
	l.step(4)
	if w.r.IntN(10) == 0 {
		l.step(5)
	}
	for lane := range workers {
		l.deliver(lane, MaxOrders)
	}
	l.step(0)
	l.step(2)
}

// heal runs the leader without faults until nothing is left to do, and then for a while with
// handovers, during which nothing may be late.
func (w *world) heal() {
	w.healed = true
	if w.leaders[len(w.leaders)-1].over {
		w.takeover()
	}
	for i := 0; len(w.late(1200)) > 0; i++ {
		if w.calmStep(); i == 3000 {
			w.l.wrong = append(w.l.wrong, "it does not come to rest")
			return
		}
	}
	for range 300 {
		switch w.r.IntN(40) {
		case 0, 7:
			w.handover()
		case 1:
			w.post()
		case 2, 3, 4, 5, 6:
			if err := w.nodes[w.r.IntN(len(w.nodes))].Preload(w.t.Context()); err != nil {
				w.t.Fatal(err)
			}
		}
		w.calmStep()
		if late := w.late(3500); len(late) > 0 {
			w.l.wrong = append(w.l.wrong, "all is well, and "+strings.Join(late[:min(len(late), 3)], ", "))
			return
		}
	}
}

func (w *world) check() []string {
	wrong := w.l.wrong
	seen := make(map[outbox.ID]bool)
	for _, f := range w.l.firings {
		id := outbox.ID{Job: f.Job, AtMS: f.AtMS}
		if seen[id] {
			wrong = append(wrong, fmt.Sprintf("%s at %d was fired twice", f.Job, f.AtMS))
		}
		seen[id] = true
		done := 0
		for _, had := range w.had {
			if had[id] {
				done++
			}
		}
		if done > 1 && !w.excused[id] {
			wrong = append(wrong, fmt.Sprintf("%s at %d was done by %d workers", f.Job, f.AtMS, done))
		}
		if !w.fresh(f) && (done == 0 || f.DeliveredMS == 0) {
			wrong = append(wrong, fmt.Sprintf("%s at %d was recorded and did not reach a worker", f.Job, f.AtMS))
		}
	}
	for key, j := range w.posted {
		var spec schedule.Spec
		if j.Schedule != "" {
			spec, _ = schedule.Parse(j.Schedule)
		}
		until := w.l.jobs[key].NextMS // 0: it will not fire again
		for at := j.NextMS; j.Misfire == ledgerapi.MisfireAll && at != 0 && (until == 0 || at < until); at = spec.Next(at) {
			if !seen[outbox.ID{Job: key, AtMS: at}] {
				wrong = append(wrong, fmt.Sprintf("%s at %d is missing", key, at))
			}
		}
	}
	return wrong
}

// seeds is the number of worlds: TENURE_ROUNDS, or as many as fit into CI.
func seeds(t *testing.T) uint64 {
	const few = 40
	s := os.Getenv("TENURE_ROUNDS")
	if s == "" {
		return few
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		t.Fatalf("TENURE_ROUNDS: %v", err)
	}
	return max(n, few)
}

// However leaders are replaced, between a read, a write and its answer, and whatever is lost:
// no (job, instant) is recorded twice, none that the job wants is missing, only misfires are
// skipped, nothing fires early, and every firing reaches a worker and is recorded as
// delivered. If leaders stop in order, no firing is done by two workers.
func TestFailoversNeitherDoubleNorSkip(t *testing.T) {
	fired, moved := 0, uint64(0)
	for seed := range seeds(t) {
		w := newWorld(t, seed)
		w.run(600)
		w.heal()
		if wrong := w.check(); len(wrong) > 0 {
			t.Fatalf("seed %d: %s", seed, strings.Join(wrong[:min(len(wrong), 5)], "\n"))
		}
		fired += len(w.l.firings)
		for _, n := range w.nodes {
			moved += n.Status().Moved
		}
	}
	if fired < 10_000 || moved == 0 {
		t.Errorf("%d firings, %d found moved: this shows nothing", fired, moved)
	}
}

// A leader that is refused stops with an error that its node recognises.
func TestRefusedTickStops(t *testing.T) {
	w := newWorld(t, 1)
	w.healed = true
	w.takeover()
	old := w.leaders[0]
	w.takeover()
	w.l.nowMS += 5000
	err := old.tick(t.Context(), w.l.nowMS)
	var stale *fence.StaleError
	if !fencedwriter.Stop(err) || !errors.As(err, &stale) {
		t.Errorf("%v", err)
	}
	if len(w.l.ticks) != 0 {
		t.Error("a stale tick was written")
	}
}
