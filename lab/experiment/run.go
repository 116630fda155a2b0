package experiment

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/load"
)

// Config says how experiments are run.
type Config struct {
	// Bin is the folder of the programs, Planted that of those with bugs to plant,
	// asked for only when a trial needs it.
	Bin     string
	Planted func(context.Context) (string, error)
	// Out is the folder for results and histories.
	Out  string
	Size Size
	// Again runs what has a result already.
	Again bool
	// Say is told what happens now, and which part of the experiment is done, 0 to 1.
	Say func(done float64, what string)
}

// Outcome is what became of a trial.
type Outcome struct {
	Trial
	// Dir is the trial's folder: its history, the ledger's database and the logs.
	Dir     string       `json:"dir"`
	Seconds float64      `json:"seconds"`
	Rounds  []Round      `json:"rounds_seen"`
	Load    load.Report  `json:"load"`
	Report  check.Report `json:"report"`
	Damage  damage       `json:"damage"`
	Effects []effect     `json:"effects"`
	// Orders is what the workers took and refused, whenever it changed.
	Orders []workerCounts `json:"orders,omitempty"`
	// Churn is what a storm of kills cost the engine.
	Churn *churnCost `json:"churn,omitempty"`
}

// A trial's folder of its history, and the name of what callers saw in there.
const (
	historyDir = "history"
	callsName  = "calls"
)

// resultFile is written when an experiment is over, whatever came out.
const resultFile = "result.json"

// Run runs an experiment, or returns the result that it has. An error means that it
// could not be run to its end; thresholds that were not met are in the result.
func Run(ctx context.Context, cfg Config, e Experiment) (Result, error) {
	dir, err := filepath.Abs(filepath.Join(cfg.Out, string(cfg.Size), e.Name))
	if err != nil {
		return Result{}, err
	}
	trials := e.Trials(cfg.Size)
	key, err := keyOf(ctx, cfg, e, trials)
	if err != nil {
		return Result{}, err
	}
	if r, ok := cfg.finished(dir, key); ok {
		cfg.Say(1, "has a result of these programs already, in "+dir+"; --again runs it again")
		r.Kept = true
		return r, nil
	}
	release, err := lockFolder(dir)
	if err != nil {
		return Result{}, err
	}
	defer release()
	kept, err := keptTrials(dir, key, trials, cfg.Again)
	if err != nil {
		return Result{}, err
	}
	r := Result{Experiment: e, Size: cfg.Size, Key: key, Revision: revision(ctx, "."), Command: e.command(cfg.Size), Dir: dir, BeganAt: time.Now().UTC()}
	total := 0
	for _, t := range trials {
		total += t.Rounds + 1
	}
	var done atomic.Int64
	say := func(t Trial, what string) { cfg.Say(float64(done.Load())/float64(total), t.Name+": "+what) }
	for _, batch := range batches(trials) {
		if outcomes, ok := keptBatch(kept, batch); ok {
			for i, t := range batch {
				done.Add(int64(t.Rounds) + 1)
				say(t, "was run before this run was stopped")
				r.Outcomes = append(r.Outcomes, outcomes[i])
			}
			continue
		}
		outcomes, err := runBatch(ctx, batch, func(ctx context.Context, t Trial) (Outcome, error) {
			// Of those that run together some may have been kept: all are run again.
			if err := os.RemoveAll(filepath.Join(dir, t.Name)); err != nil {
				return Outcome{}, err
			}
			o, err := runTrial(ctx, cfg, e, t, filepath.Join(dir, t.Name), func(format string, args ...any) { say(t, fmt.Sprintf(format, args...)) }, func() { done.Add(1) })
			if err != nil {
				return o, fmt.Errorf("experiment %s, %s: %w; logs and history are in %s", e.Name, t.Name, err, o.Dir)
			}
			done.Add(1)
			return o, nil
		})
		if err != nil {
			return r, err
		}
		for _, o := range outcomes {
			if err := keepTrial(o, key); err != nil {
				return r, err
			}
		}
		r.Outcomes = append(r.Outcomes, outcomes...)
	}
	r.judge()
	if err := r.Save(); err != nil {
		return r, err
	}
	r.draw(func(what string) { cfg.Say(1, what) })
	return r, nil
}

// keyOf is what a result belongs to: the configuration and the programs.
func keyOf(ctx context.Context, cfg Config, e Experiment, trials []Trial) (string, error) {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode([]any{e, cfg.Size, trials}); err != nil {
		return "", err
	}
	paths, err := programs(ctx, cfg, trials)
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		_, err = io.Copy(h, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// programs are those that a result rests on: this one, which breaks and judges, the
// fleet's, and those with planted bugs where some are planted.
func programs(ctx context.Context, cfg Config, trials []Trial) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dirs := []string{cfg.Bin}
	if slices.ContainsFunc(trials, func(t Trial) bool { return len(t.Plant) > 0 }) {
		planted, err := cfg.Planted(ctx)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, planted)
	}
	paths := []string{self}
	for _, dir := range dirs {
		for _, name := range []string{"engine", "labfleet"} {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths, nil
}

// revision is that of the checkout around a folder, and whether something in there
// differs from it; empty: there is none.
func revision(ctx context.Context, dir string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	top, err := child.Repository(dir)
	if err != nil {
		return ""
	}
	cmd := exec.CommandContext(ctx, "git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty= (modified)")
	cmd.Dir, cmd.Env = top, append(os.Environ(), "GIT_OPTIONAL_LOCKS=0")
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func runTrial(ctx context.Context, cfg Config, e Experiment, t Trial, dir string, say func(string, ...any), round func()) (Outcome, error) {
	o := Outcome{Trial: t, Dir: dir}
	bin := cfg.Bin
	if len(t.Plant) > 0 {
		var err error
		if bin, err = cfg.Planted(ctx); err != nil {
			return o, err
		}
	}
	history, traces := filepath.Join(dir, historyDir), filepath.Join(dir, "traces")
	db := filepath.Join(dir, "ledger.db")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return o, err
	}
	fc := lab.Config{
		Bin: bin, Dir: filepath.Join(dir, "fleet"), Group: group, Backend: t.Engine, Nodes: t.Nodes, Engines: t.Engines, Workers: cmp.Or(t.Workers, -1), TTL: t.TTL, DB: db,
		Unfenced: t.Unfenced, KeepAll: true, NodeArgs: []string{"--trace", traces}, Restart: true, Event: func(what string) { say("%s", what) },
	}
	if len(t.Plant) > 0 {
		fc.NodeArgs = append(fc.NodeArgs, "--plant", strings.Join(t.Plant, ","))
	}
	fc.NodeArgs = append(fc.NodeArgs, t.args()...)
	if t.fleet != nil {
		t.fleet(&fc)
	}
	began := time.Now()
	run := t.describe(e, cfg.Size)
	run.At = now()
	s := &trialRun{trial: t, rng: rand.New(rand.NewPCG(e.Seed, hashOf(t.Name))), say: say, round: round}
	var err error
	if s.calls, err = check.Create(history, callsName, 0); err != nil {
		return o, err
	}
	if s.faults, err = check.Create(history, "run", 0); err != nil {
		return o, errors.Join(err, s.calls.Close())
	}
	undo := func() error { return nil }
	if t.prepare != nil {
		undo, err = t.prepare(dir)
	}
	if err == nil {
		err = errors.Join(s.runFleet(ctx, fc), undo())
	}
	run.Jobs = s.jobs // until when they must have fired is known now
	if err := errors.Join(err, s.faults.Write(run), s.calls.Close(), s.faults.Close()); err != nil {
		return o, err
	}
	say("checking %d calls", s.load.Calls)
	if o.Effects, err = collect(ctx, history, traces, db); err != nil {
		return o, err
	}
	o.Rounds, o.Load, o.Orders, o.Churn = s.rounds, s.load, s.workerCounts, s.churnCost
	if err := check.WriteManifest(history); err != nil {
		return o, err
	}
	required := func(check.Run) (check.Run, error) { return run, nil }
	if o.Report, err = check.Dir(ctx, history, check.Options{DB: db, Expect: required}); err != nil {
		return o, err
	}
	if o.Damage, err = damageOf(ctx, db); err != nil {
		return o, err
	}
	if t.after != nil {
		if err := t.after(traces, &o); err != nil {
			return o, err
		}
	}
	o.Seconds = time.Since(began).Seconds()
	// The history has what they had.
	gone := os.RemoveAll(traces)
	for _, e := range s.file.Engines {
		gone = errors.Join(gone, os.RemoveAll(filepath.Join(fc.Dir, e.ID)))
	}
	return o, gone
}

// runFleet runs the fleet around the script.
func (s *trialRun) runFleet(ctx context.Context, fc lab.Config) (err error) {
	s.say("starting the fleet")
	over := s.trial.with.turn()
	s.fleet, err = lab.Start(ctx, fc)
	over()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.fleet.Stop()) }()
	s.file = s.fleet.File()
	return s.runScript(ctx)
}

// hashOf gives trials of one experiment different chances. Those whose names differ
// only in what is compared, behind a slash, have the same.
func hashOf(name string) uint64 {
	name, _, _ = strings.Cut(name, "/")
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // it cannot fail
	return h.Sum64()
}
