package experiment

import (
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
	"path/filepath"
	"strings"
	"time"

	"github.com/tenurehq/tenure/app/lab"
	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/app/lab/load"
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
}

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
	key, err := keyOf(cfg, e, trials)
	if err != nil {
		return Result{}, err
	}
	if !cfg.Again {
		if r, err := ReadResult(filepath.Join(dir, resultFile)); err == nil && r.Key == key && r.Passed() {
			cfg.Say(1, "has a result of these programs already, in "+dir+"; --again runs it again")
			r.Kept = true
			return r, nil
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return Result{}, err
	}
	r := Result{Experiment: e, Size: cfg.Size, Key: key, Command: e.command(cfg.Size), Dir: dir, BeganAt: time.Now().UTC()}
	total, done := 0, 0
	for _, t := range trials {
		total += t.Rounds + 1
	}
	for _, t := range trials {
		say := func(format string, args ...any) {
			cfg.Say(float64(done)/float64(total), t.Name+": "+fmt.Sprintf(format, args...))
		}
		o, err := runTrial(ctx, cfg, e, t, filepath.Join(dir, t.Name), say, func() { done++ })
		if err != nil {
			return r, fmt.Errorf("experiment %s, %s: %w; logs and history are in %s", e.Name, t.Name, err, o.Dir)
		}
		done++
		r.Outcomes = append(r.Outcomes, o)
	}
	r.judge()
	r.Seconds = time.Since(r.BeganAt).Seconds()
	if err := r.save(); err != nil {
		return r, err
	}
	r.draw(func(what string) { cfg.Say(1, what) })
	return r, nil
}

// keyOf is what a result belongs to: the configuration and the programs.
func keyOf(cfg Config, e Experiment, trials []Trial) (string, error) {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode([]any{e, cfg.Size, trials}); err != nil {
		return "", err
	}
	for _, name := range []string{"engine", "node", "tenure"} {
		f, err := os.Open(filepath.Join(cfg.Bin, name))
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

func runTrial(ctx context.Context, cfg Config, e Experiment, t Trial, dir string, say func(string, ...any), round func()) (Outcome, error) {
	o := Outcome{Trial: t, Dir: dir}
	bin := cfg.Bin
	if len(t.Plant) > 0 {
		var err error
		if bin, err = cfg.Planted(ctx); err != nil {
			return o, err
		}
	}
	history, traces := filepath.Join(dir, "history"), filepath.Join(dir, "traces")
	db := filepath.Join(dir, "ledger.db")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return o, err
	}
	fc := lab.Config{
		Bin: bin, Dir: filepath.Join(dir, "fleet"), Group: group, Backend: t.Engine, Nodes: t.Nodes, Workers: -1, TTL: t.TTL, DB: db,
		Unfenced: t.Unfenced, NodeArgs: []string{"-trace", traces}, Restart: true, Event: func(what string) { say("%s", what) },
	}
	if len(t.Plant) > 0 {
		fc.NodeArgs = append(fc.NodeArgs, "-plant", strings.Join(t.Plant, ","))
	}
	if t.Engine == raftEngine {
		fc.NodeArgs = append(fc.NodeArgs, "-election-timeout", t.TTL.String())
	}
	began := time.Now()
	run := t.describe(e, cfg.Size)
	run.At = now()
	s := &stage{trial: t, rng: rand.New(rand.NewPCG(e.Seed, hashOf(t.Name))), say: say, round: round}
	var err error
	if s.calls, err = check.Create(history, "calls", 0); err != nil {
		return o, err
	}
	if s.faults, err = check.Create(history, "run", 0); err != nil {
		return o, errors.Join(err, s.calls.Close())
	}
	err = s.faults.Write(run)
	if err == nil {
		err = s.perform(ctx, fc)
	}
	if err := errors.Join(err, s.calls.Close(), s.faults.Close()); err != nil {
		return o, err
	}
	say("checking %d calls", s.load.Calls)
	if o.Effects, err = collect(ctx, history, traces, db); err != nil {
		return o, err
	}
	o.Rounds, o.Load = s.rounds, s.load
	if o.Report, err = check.Dir(ctx, history, check.Options{DB: db}); err != nil {
		return o, err
	}
	if o.Damage, err = damageOf(ctx, db); err != nil {
		return o, err
	}
	o.Seconds = time.Since(began).Seconds()
	// The history has what they had.
	return o, errors.Join(os.RemoveAll(filepath.Join(fc.Dir, "engine")), os.RemoveAll(traces))
}

// perform runs the fleet around the script.
func (s *stage) perform(ctx context.Context, fc lab.Config) (err error) {
	s.say("starting the fleet")
	if s.fleet, err = lab.Start(ctx, fc); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.fleet.Stop()) }()
	s.file = s.fleet.File()
	return s.rehearse(ctx)
}

// hashOf gives trials of one experiment different chances. Those whose names differ
// only in what is compared, behind a slash, have the same.
func hashOf(name string) uint64 {
	name, _, _ = strings.Cut(name, "/")
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // it cannot fail
	return h.Sum64()
}
