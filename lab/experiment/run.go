package experiment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/trial"
)

// Config says how experiments are run.
type Config struct {
	// Bin is the folder of the programs. Planted returns the folder of the programs with
	// bugs to plant; it is called only if a trial needs it.
	Bin     string
	Planted func(context.Context) (string, error)
	// Out is the folder for results and histories.
	Out  string
	Size Size
	// Again repeats experiments that have a result.
	Again bool
	// Say reports progress and the fraction of the experiment that is done.
	Say func(done float64, what string)
}

// Run runs an experiment, or returns the result that it already has. An error means that it
// did not run to its end; bars that were not met are in the result.
func Run(ctx context.Context, cfg Config, e Experiment) (Result, error) {
	dir, err := filepath.Abs(cfg.dir(e))
	if err != nil {
		return Result{}, err
	}
	trials := e.Trials(cfg.Size)
	key, err := cfg.key(ctx, e, trials)
	if err != nil {
		return Result{}, err
	}
	if r, ok := cfg.finished(e, key); ok {
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
	r := Result{
		Experiment: e, Size: cfg.Size, Key: key, Revision: revision(ctx, "."), Command: e.Command(cfg.Size), Dir: dir, BeganAt: time.Now().UTC(),
		Machine: fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version()),
	}
	total := 0
	for _, t := range trials {
		total += t.Rounds + 1
	}
	var done atomic.Int64
	say := func(t trial.Trial, what string) { cfg.Say(float64(done.Load())/float64(total), t.Name+": "+what) }
	for _, batch := range trial.Batches(trials) {
		outcomes := make([]trial.Outcome, len(batch))
		all := true
		for i, t := range batch {
			o, ok := kept[t.Name]
			outcomes[i], all = o, all && ok
		}
		if all {
			for _, t := range batch {
				done.Add(int64(t.Rounds) + 1)
				say(t, "is kept from the run that was stopped")
			}
		} else {
			outcomes, err = trial.DoBatch(ctx, batch, func(ctx context.Context, t trial.Trial) (trial.Outcome, error) {
				defer done.Add(1)
				o, err := cfg.runTrial(ctx, e, t, filepath.Join(dir, t.Name), func(format string, args ...any) { say(t, fmt.Sprintf(format, args...)) }, func() { done.Add(1) })
				if err != nil {
					err = fmt.Errorf("experiment %s, %s: %w; logs and history are in %s", e.Name, t.Name, err, o.Dir)
				}
				return o, err
			})
			if err != nil {
				return r, err
			}
			for _, o := range outcomes {
				k := keptOutcome{Key: key, Outcome: o}
				if err := writeJSON(filepath.Join(o.Dir, outcomeFile), &k, &k.Digest); err != nil {
					return r, err
				}
			}
		}
		for _, o := range outcomes {
			r.Seconds += o.Seconds
		}
		r.Outcomes = append(r.Outcomes, outcomes...)
	}
	r.Summary = e.Summarize(r.Outcomes)
	if err := r.Save(); err != nil {
		return r, err
	}
	r.draw(func(what string) { cfg.Say(1, what) })
	return r, nil
}

func (c Config) runTrial(ctx context.Context, e Experiment, t trial.Trial, dir string, say func(string, ...any), roundDone func()) (trial.Outcome, error) {
	bin := c.Bin
	err := os.RemoveAll(dir) // one of a batch may have been kept without the others
	if err == nil && len(t.Plant) > 0 {
		bin, err = c.Planted(ctx)
	}
	if err != nil {
		return trial.Outcome{Dir: dir}, err
	}
	return t.Do(ctx, trial.Config{Bin: bin, Dir: dir, Run: e.Describe(t, c.Size), Rand: e.Random(t), Say: say, RoundDone: roundDone})
}

// key identifies what a result belongs to: the configuration and the programs.
func (c Config) key(ctx context.Context, e Experiment, trials []trial.Trial) (string, error) {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode([]any{e, c.Size, trials}); err != nil {
		return "", err
	}
	paths, err := c.programs(ctx, trials)
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

// programs lists the programs that a result depends on: this one, the fleet's, and those
// with planted bugs if a trial has some.
func (c Config) programs(ctx context.Context, trials []trial.Trial) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dirs := []string{c.Bin}
	if slices.ContainsFunc(trials, func(t trial.Trial) bool { return len(t.Plant) > 0 }) {
		planted, err := c.Planted(ctx)
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

// revision returns the revision of the checkout around a folder, and whether it is modified;
// empty: there is no checkout.
func revision(ctx context.Context, dir string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", "--no-optional-locks", "-C", dir, "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty= (modified)")
	out, _ := cmd.Output() // empty if it fails
	return strings.TrimSpace(string(out))
}

// lockFolder keeps other labs out of an experiment's folder.
func lockFolder(dir string) (release func(), err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	release, err = lab.Hold(dir + ".lock")
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return func() {}, nil
	case errors.Is(err, lab.ErrHeld):
		return nil, fmt.Errorf("another lab runs this experiment in %s; wait for it, or choose another folder with --out: %w", dir, err)
	}
	return release, err
}

// keptTrials returns the trials of a run that was stopped, and removes everything else. An
// experiment that was finished runs again as a whole.
func keptTrials(dir, key string, trials []trial.Trial, again bool) (map[string]trial.Outcome, error) {
	kept := map[string]trial.Outcome{}
	_, err := os.Stat(filepath.Join(dir, resultFile))
	if unfinished := errors.Is(err, fs.ErrNotExist); unfinished && !again {
		for _, t := range trials {
			var o keptOutcome
			data, err := os.ReadFile(filepath.Join(dir, t.Name, outcomeFile))
			if err == nil && json.Unmarshal(data, &o) == nil && o.Key == key && intact(data, o.Digest) {
				kept[t.Name] = o.Outcome
			}
		}
	}
	if len(kept) == 0 {
		return kept, os.RemoveAll(dir)
	}
	return kept, nil
}

func (c Config) dir(e Experiment) string { return filepath.Join(c.Out, string(c.Size), e.Name) }

// finished returns the result of an earlier run, if it is still valid.
func (c Config) finished(e Experiment, key string) (Result, bool) {
	if c.Again {
		return Result{}, false
	}
	r, err := readResult(filepath.Join(c.dir(e), resultFile))
	return r, err == nil && r.Key == key && r.Passed()
}

// Finished reports whether Run would return a result that is already there.
func Finished(ctx context.Context, cfg Config, e Experiment) bool {
	key, err := cfg.key(ctx, e, e.Trials(cfg.Size))
	if err != nil {
		return false
	}
	_, ok := cfg.finished(e, key)
	return ok
}

// Estimate returns how long an experiment takes: as long as the last time, or what it
// declares, or what its trials suggest.
func Estimate(cfg Config, e Experiment) time.Duration {
	if r, err := readResult(filepath.Join(cfg.dir(e), resultFile)); err == nil && r.Seconds > 0 && r.Command == e.Command(cfg.Size) {
		return time.Duration(r.Seconds * float64(time.Second))
	}
	if e.Takes != nil {
		return e.Takes(cfg.Size)
	}
	var sum time.Duration
	for _, t := range e.Trials(cfg.Size) {
		// Start and end, and in each round a failover and a restart.
		sum += 6*time.Second + time.Duration(t.Rounds)*(t.TTL+time.Second)
	}
	return sum
}
