package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/lab/load"
	"github.com/tenurehq/tenure/reference/api"
	fleetclient "github.com/tenurehq/tenure/reference/client"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	ledgerclient "github.com/tenurehq/tenure/reference/ledger/client"
)

// ErrNotSeen: the fleet ran, but something that the script waited for did not happen.
var ErrNotSeen = errors.New("not seen")

// Patience is how long a script waits for something. It is long because the machine may be
// loaded.
const Patience = 60 * time.Second

// The names of a history's folder and of its file of calls.
const (
	HistoryDir = "history"
	callsName  = "calls"
)

// Config says how a trial is run.
type Config struct {
	// Bin is the folder of the programs: those with planted bugs if the trial has some.
	Bin string
	// Dir is the folder of the outcome.
	Dir string
	// Run describes the trial in its history.
	Run history.Run
	// Rand decides the delays and choices of the script.
	Rand *rand.Rand
	// Say reports progress, RoundDone that a round is over.
	Say       func(format string, args ...any)
	RoundDone func()
}

// Run is a fleet at work, for the script of a trial, with the outcome so far.
type Run struct {
	*Outcome
	Config
	File   labapi.FleetFile
	Chaos  *chaos.Fleet
	Nodes  *fleetclient.Client
	Ledger *ledgerclient.Client
	Faults *history.Writer

	fleet *lab.Fleet
	calls *history.Writer
	jobs  []history.Job
	takes int // how often Take was called
}

// Do runs the trial: starts the fleet, plays the script, collects the history and checks
// it. An error means that the trial did not run to its end.
func (t Trial) Do(ctx context.Context, cfg Config) (Outcome, error) {
	o := Outcome{Trial: t, Dir: cfg.Dir}
	began := time.Now()
	historyDir, traces, db := filepath.Join(cfg.Dir, HistoryDir), filepath.Join(cfg.Dir, "traces"), filepath.Join(cfg.Dir, "ledger.db")
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return o, err
	}
	fleet := lab.Config{
		Bin: cfg.Bin, Dir: filepath.Join(cfg.Dir, "fleet"), Group: Group, Backend: t.Engine, Nodes: t.Nodes, Engines: t.Engines, Workers: cmp.Or(t.Workers, -1), TTL: t.TTL, DB: db,
		Unfenced: t.Unfenced, Pulse: t.Pulse, KeepAll: true, NodeArgs: append([]string{"--trace", traces}, t.args()...), Restart: true, Event: func(what string) { cfg.Say("%s", what) },
	}
	if len(t.Plant) > 0 {
		fleet.NodeArgs = append(fleet.NodeArgs, "--plant", strings.Join(t.Plant, ","))
	}
	if t.Fleet != nil {
		t.Fleet(&fleet)
	}
	cfg.Run.At = now()
	s := &Run{Outcome: &o, Config: cfg}
	var err error
	if s.calls, err = history.Create(historyDir, callsName); err != nil {
		return o, err
	}
	if s.Faults, err = history.Create(historyDir, "run"); err != nil {
		return o, errors.Join(err, s.calls.Close())
	}
	undo := func() error { return nil }
	if t.Prepare != nil {
		undo, err = t.Prepare(cfg.Dir)
	}
	if err == nil {
		if err = s.start(ctx, fleet); err == nil {
			err = errors.Join(s.underLoad(ctx, s.script), s.fleet.Stop())
		}
		err = errors.Join(err, undo())
	}
	cfg.Run.Jobs = s.jobs // now it is known until when they must have fired
	if err := errors.Join(err, s.Faults.Write(cfg.Run), s.calls.Close(), s.Faults.Close()); err != nil {
		return o, err
	}
	cfg.Say("checking %d calls", o.Load.Calls)
	if o.Effects, err = collect(ctx, historyDir, traces, db); err != nil {
		return o, err
	}
	if err := history.WriteManifest(historyDir); err != nil {
		return o, err
	}
	required := func(history.Run) (history.Run, error) { return cfg.Run, nil }
	if o.Report, err = check.Dir(ctx, historyDir, check.Options{DB: db, Expect: required}); err != nil {
		return o, err
	}
	if o.Damage, err = damageOf(ctx, db); err != nil {
		return o, err
	}
	if t.After != nil {
		if err := t.After(traces, &o); err != nil {
			return o, err
		}
	}
	o.Seconds = time.Since(began).Seconds()
	err = os.RemoveAll(traces) // the history has everything
	for _, e := range s.File.Engines {
		err = errors.Join(err, os.RemoveAll(filepath.Join(fleet.Dir, e.ID)))
	}
	return o, err
}

// start starts the fleet.
func (s *Run) start(ctx context.Context, cfg lab.Config) (err error) {
	s.Say("starting the fleet")
	defer s.batch.startingFleet()()
	if s.fleet, err = lab.Start(ctx, cfg); err == nil {
		s.File = s.fleet.File()
	}
	return err
}

// underLoad connects to the fleet, waits for a leader, and makes calls while do runs.
func (s *Run) underLoad(ctx context.Context, do func(context.Context) error) (err error) {
	var urls []string
	for _, n := range s.File.Nodes {
		urls = append(urls, n.URL)
	}
	if s.Nodes, err = fleetclient.New(fleetclient.Config{URLs: urls, Timeout: 2 * time.Second}); err != nil {
		return err
	}
	defer s.Nodes.Close()
	if s.Ledger, err = ledgerclient.New(ledgerclient.Config{URL: s.File.Ledger.URL, Timeout: 2 * time.Second}); err != nil {
		return err
	}
	defer s.Ledger.Close()
	if s.Chaos, err = chaos.Open(s.fleet.Path()); err != nil {
		return err
	}
	l, err := s.Leader(ctx, 0)
	if err != nil {
		return err
	}
	s.Say("%s leads with token %d; %.0f calls a second", l.ID, l.Token, s.Rate)
	calling, stop := context.WithCancel(ctx)
	var callers sync.WaitGroup
	var failed error
	callers.Go(func() {
		s.Load, failed = load.Run(calling, load.Config{URLs: urls, Rate: s.Rate, Connections: 64, For: 24 * time.Hour, Timeout: s.Trial.Patience, Calls: s.calls, Name: "caller-"})
	})
	err = do(ctx)
	stop()
	callers.Wait()
	return cmp.Or(err, failed)
}

// script plays the trial's script, with jobs that must fire meanwhile.
func (s *Run) script(ctx context.Context) error {
	if err := errors.Join(s.putJobs(ctx), s.Hold(ctx, time.Second)); err != nil {
		return err
	}
	if err := s.Play(ctx, s); err != nil {
		return err
	}
	// Wait until the fleet has recovered from the last fault.
	if err := errors.Join(s.AllUp(ctx), s.Hold(ctx, time.Second)); err != nil {
		return err
	}
	return s.endJobs(ctx)
}

// Hold waits.
func (*Run) Hold(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Await polls until seen returns true. After Patience it returns an ErrNotSeen.
func Await(ctx context.Context, what string, seen func(context.Context) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Patience, fmt.Errorf("%w within %v: %s", ErrNotSeen, Patience, what))
	defer cancel()
	for !seen(ctx) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// Leader waits for a node that leads and works with a token above the given one.
func (s *Run) Leader(ctx context.Context, above fence.Token) (l inspect.Target, err error) {
	err = Await(ctx, fmt.Sprintf("a leader with a token above %d", above), func(ctx context.Context) bool {
		l, err = s.Chaos.Leader(ctx, above)
		return err == nil
	})
	return l, err
}

// Status asks a node. It returns false if the node does not answer.
func (s *Run) Status(ctx context.Context, url string) (api.Status, bool) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	st, err := s.Nodes.Status(ctx, url)
	return st, err == nil
}

// AllUp waits until every node answers and one of them leads.
func (s *Run) AllUp(ctx context.Context) error {
	if err := Await(ctx, "every node answering", func(ctx context.Context) bool {
		return !slices.ContainsFunc(s.File.Nodes, func(n labapi.NodeFile) bool { _, ok := s.Status(ctx, n.URL); return !ok })
	}); err != nil {
		return err
	}
	_, err := s.Leader(ctx, 0)
	return err
}

// CurrentNodes returns the nodes with the PIDs that they have now.
func (s *Run) CurrentNodes() []labapi.NodeFile { return s.fleet.File().Nodes }

// Kept waits until a keeper watches over the leader, and notes in the round who leads then.
func (s *Run) Kept(ctx context.Context, r *Round) error {
	return Await(ctx, "a keeper of the leader", func(ctx context.Context) bool {
		l, err := s.Leader(ctx, 0)
		r.Node, r.Token = l.ID, l.Token
		st, ok := s.Status(ctx, l.URL)
		return err == nil && ok && st.Kept
	})
}

// Others returns the ids of all nodes but one.
func (s *Run) Others(but string) (ids []string) {
	for _, n := range s.File.Nodes {
		if n.ID != but {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// Sealed waits until the ledger refuses the old token, and returns the leader that sealed it.
func (s *Run) Sealed(ctx context.Context, old fence.Token) (inspect.Target, error) {
	if err := Await(ctx, "the successor's seal", func(ctx context.Context) bool {
		r, err := s.Ledger.Resource(ctx, Group)
		return err == nil && r.Token > old
	}); err != nil {
		return inspect.Target{}, err
	}
	return s.Leader(ctx, old)
}

// Take takes numbers from one node. It fails if the node answered no call in time.
func (s *Run) Take(ctx context.Context, from inspect.Target, count int64, within time.Duration) error {
	s.takes++
	r, err := load.Run(ctx, load.Config{
		URLs: []string{from.URL}, Rate: 400, Connections: 8, Count: count, For: within, Timeout: s.Trial.Patience,
		Patience: within, Calls: s.calls, Name: fmt.Sprintf("visitor-%d-", s.takes),
	})
	if err == nil && r.Calls == 0 {
		err = fmt.Errorf("%w: %s answered none of %d calls (%s)", ErrNotSeen, from.ID, count, r.FirstTrouble)
	}
	return err
}

// Recovered waits until the ledger accepts a write again, and notes the leader in the round.
func (s *Run) Recovered(ctx context.Context, r *Round) error {
	return Await(ctx, "a number from the leader", func(ctx context.Context) bool {
		l, err := s.Leader(ctx, 0)
		r.Follow(l)
		return err == nil && s.Take(ctx, l, 1, time.Second) == nil
	})
}

// refusal waits until the ledger lists a stale write of a node with a token.
func (s *Run) refusal(ctx context.Context, node string, token fence.Token) (found ledgerapi.Rejection, err error) {
	err = Await(ctx, fmt.Sprintf("a stale write of %s with token %d", node, token), func(ctx context.Context) bool {
		page, err := s.Ledger.Rejections(ctx, "", ledgerapi.MaxPage)
		i := slices.IndexFunc(page.Items, func(r ledgerapi.Rejection) bool {
			return r.Resource == Group && r.Token == token && r.Holder == node && r.CurrentToken > token
		})
		if err != nil || i < 0 {
			return false
		}
		found = page.Items[i]
		return true
	})
	return found, err
}

// Down waits until a node no longer says that it leads with a token.
func (s *Run) Down(ctx context.Context, id string, token fence.Token) error {
	return Await(ctx, id+" stepping down", func(ctx context.Context) bool {
		for _, n := range s.File.Nodes {
			if n.ID == id {
				st, ok := s.Status(ctx, n.URL)
				return ok && (st.Role != api.Leader || st.FenceToken != token)
			}
		}
		return false
	})
}
