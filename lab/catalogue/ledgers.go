package catalogue

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/chaos/inspect"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/trial"
)

// longName marks trials in which the ledger is unavailable for longer than a leader waits.
const longName = "-long"

// ledgerKilled is experiment 10.
func ledgerKilled() experiment.Experiment {
	return experiment.Experiment{
		Name: "10", Title: "the ledger killed under load", Seed: 10,
		Question:    "What is lost when the ledger is killed with SIGKILL in the middle of its commits, and what does the leader do?",
		Expectation: "Nothing that was acknowledged, and no number is given twice: calls under way become unknown. A leader whose ledger is back before its patience (the TTL) is over keeps its term. One whose ledger stays away for longer steps down by itself, and somebody leads and writes within G7's bound once it is back.",
		Trials: func(size experiment.Size) []trial.Trial {
			on := func(engine string, ttl, gone time.Duration, rounds int) trial.Trial {
				t := trial.New(engine, ttl, experiment.Pick(size, 500.0, 5000), rounds, trial.Loop{What: "killing the ledger", Round: killLedger})
				t.Fleet = func(c *lab.Config) {
					c.RestartWait = gone
					c.NodeArgs = append(c.NodeArgs, "--sink-patience", ttl.String())
				}
				if gone > ttl { // leaders step down by themselves: G4 leaves those terms to G5
					t.Name, t.Pass = t.Name+longName, trial.Safe("evidence", "baton")
				}
				return t
			}
			const short, long = 200 * time.Millisecond, 4 * time.Second
			all := []trial.Trial{on(trial.Etcd, 3*time.Second, short, experiment.Pick(size, 2, 20))}
			if size == experiment.Full {
				all = append(all, on(trial.Raft, 2*time.Second, short, 20), on(trial.Raft, 2*time.Second, long, 5))
			}
			return append(all, on(trial.Etcd, 2*time.Second, long, experiment.Pick(size, 1, 5)))
		},
		Judge: func(j measure.Judge, o trial.Outcome) {
			kept := o.Count(func(r trial.Round) bool { return r.Next == r.Token })
			if strings.HasSuffix(o.Name, longName) {
				j.Count("the leader steps down by itself", o.Count(func(r trial.Round) bool {
					c := o.Term(r.Token).Cause
					return r.Next > r.Token && (c == "unhealthy" || c == "resigned")
				}), o.Trial.Rounds)
			} else {
				j.Count("the leader keeps its term", kept, o.Trial.Rounds)
			}
			noDamage(j, o)
			v, _ := o.Report.Verdict("sequence")
			j.Row("kills", []string{"kills", "term kept", "calls answered", "outcome unknown", "stale refused"},
				len(o.Rounds), kept, v.Count("calls answered"), v.Count("calls of unknown outcome"), o.Damage.Refused)
		},
	}
}

func noDamage(j measure.Judge, o trial.Outcome) {
	j.None("numbers given twice", o.Damage.Reused)
	j.None("stale writes accepted", o.Damage.Applied)
}

func killLedger(ctx context.Context, s *trial.Run, _ int, r *trial.Round) error {
	r.Kind = "kill"
	f, err := s.Inject(ctx, r, chaos.Spec{Kind: chaos.Kill, Targets: []string{"ledger"}})
	if err != nil {
		return err
	}
	r.Seen = f.Evidence
	return s.Recovered(ctx, r)
}

// The ways in which a disk fails.
const (
	diskSync    = "sync"      // every sync fails with an I/O error
	diskNoSpace = "no-space"  // every write fails for lack of space
	diskFull    = "full-disk" // a small file system is full
)

// disk is experiment 12.
func disk() experiment.Experiment {
	return experiment.Experiment{
		Name: "12", Title: "disk full and syncs that fail, at the ledger", Seed: 12,
		Question:    "Does the ledger acknowledge what is not on disk when its disk fails, what is lost, and does everything come back when the disk does?",
		Expectation: "While no sync (or no write) succeeds, no call is answered: their outcome is unknown. The ledger says in /healthz that it cannot write. What was acknowledged is all there, no number is given twice. A leader that cannot write for longer than its patience steps down; when the disk is well, somebody writes within G7's bound, and nobody has to restart anything. A disk that is really full lets through what needs no new block.",
		Trials: func(size experiment.Size) (all []trial.Trial) {
			on := func(engine, kind string) trial.Trial {
				const ttl = 2 * time.Second
				t := trial.New(engine, ttl, 300, experiment.Pick(size, 1, 5), diskScript(kind))
				t.Name, t.Pass = engine+"-"+kind, trial.Safe("evidence", "baton")
				t.After = func(_ string, o *trial.Outcome) error { return countAsked(o.Dir, o.Rounds) }
				t.Fleet = func(c *lab.Config) {
					c.NodeArgs = append(c.NodeArgs, "--sink-patience", ttl.String())
					if kind == diskFull {
						c.DB = filepath.Join(mountPoint(filepath.Dir(c.Dir)), filepath.Base(c.DB))
					}
				}
				if kind == diskFull {
					t.Prepare = mountForTrial
				}
				return t
			}
			kinds := experiment.Pick(size, []string{diskSync}, []string{diskSync, diskNoSpace})
			if canMount() {
				kinds = append(kinds, diskFull)
			}
			for _, kind := range kinds {
				for _, engine := range experiment.Pick(size, []string{trial.Etcd}, []string{trial.Etcd, trial.Raft}) {
					all = append(all, on(engine, kind))
				}
			}
			return all
		},
		Judge: func(j measure.Judge, o trial.Outcome) {
			answered := int64(0)
			for i, r := range o.Rounds {
				answered += r.Answered
				j.Row("disks that failed", []string{"round", "for", "asked", "answered", "term", "after", "what shows it"},
					i+1, r.Healed.Sub(r.Begun), r.Asked, r.Answered, r.Token, r.Next, r.Seen)
			}
			j.Count("the ledger said that it cannot write, and that it can again", o.Count(func(r trial.Round) bool { return r.Refused }), o.Trial.Rounds)
			if !strings.HasSuffix(o.Name, diskFull) {
				j.Count("rounds in which callers asked meanwhile", o.Count(func(r trial.Round) bool { return r.Asked > 0 }), o.Trial.Rounds)
				j.None("calls answered while nothing could be made durable", answered)
				long := func(r trial.Round) bool { return r.Healed.Sub(r.Begun) > o.TTL+time.Second }
				if n := o.Count(long); n > 0 {
					j.Count("the leader steps down when it cannot write for longer than the TTL", o.Count(func(r trial.Round) bool { return long(r) && r.Next > r.Token }), n)
				}
			}
			noDamage(j, o)
		},
	}
}

func diskScript(kind string) trial.Loop {
	return trial.Loop{What: "the ledger's disk fails", Round: func(ctx context.Context, s *trial.Run, i int, r *trial.Round) error {
		r.Kind = kind
		// Longer than a leader waits, and shorter, in turn.
		d := s.TTL + 2*time.Second
		if i%2 == 1 {
			d = s.TTL / 2
		}
		spec := chaos.Spec{Kind: chaos.DiskSync, For: time.Millisecond, Until: func(ctx context.Context, _ inspect.Target) error {
			if err := trial.Await(ctx, "the ledger saying that it cannot write", func(ctx context.Context) bool { return s.Ledger.Healthy(ctx) != nil }); err != nil {
				return err
			}
			r.Begun = clock.System().Now()
			err := s.Hold(ctx, d)
			r.Healed = clock.System().Now()
			return err
		}}
		var f chaos.Fault
		var err error
		if kind == diskFull {
			f, err = s.Record("", func() (chaos.Fault, error) { return fillDisk(ctx, s, spec) })
		} else {
			if kind == diskNoSpace {
				spec.Kind = chaos.DiskFull
			}
			f, err = s.Inject(ctx, r, spec)
		}
		if err != nil {
			return err
		}
		r.Seen = f.Evidence
		if err := s.Recovered(ctx, r); err != nil {
			return err
		}
		r.Refused = true
		return trial.Await(ctx, "the ledger saying that it can write", func(ctx context.Context) bool { return s.Ledger.Healthy(ctx) == nil })
	}}
}

// countAsked counts, for each round, the calls that were made and finished while the fault
// was in effect, and those of them that were answered with numbers.
func countAsked(dir string, rounds []trial.Round) error {
	return trial.EachCall(dir, func(c history.Call) error {
		for i := range rounds {
			if r := &rounds[i]; c.Start >= r.Begun && c.End <= r.Healed && c.Start > 0 {
				if r.Asked++; c.Error == "" && !c.Unknown {
					r.Answered++
				}
			}
		}
		return nil
	})
}

// mountPoint is where the trial's small file system is mounted. It is not in the trial's
// folder, which could not be removed while a lab that was killed left it mounted.
func mountPoint(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(os.TempDir(), fmt.Sprintf("tenure-disk-%x", sum[:8]))
}

// canMount reports whether this process may mount a small file system: that needs root, and
// not every root may.
func canMount() bool {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return false
	}
	at, err := os.MkdirTemp("", "tenure-disk-")
	if err != nil {
		return false
	}
	defer func() { _ = os.Remove(at) }()
	return mount(at) == nil && unmount(at) == nil
}

// mount mounts a file system of 16 MiB, which is enough for the database and its log.
func mount(at string) error {
	return system("mount", "-t", "tmpfs", "-o", "size=16m", "tenure-lab", at)
}

func unmount(at string) error { return system("umount", "-l", at) }

// mountForTrial mounts a small file system for a trial. undo first copies the ledger's
// database from it into the trial's folder.
func mountForTrial(dir string) (undo func() error, err error) {
	at := mountPoint(dir)
	if err := os.MkdirAll(at, 0o700); err != nil {
		return nil, err
	}
	_ = unmount(at) // a lab that was killed may have left one
	if err := mount(at); err != nil {
		return nil, fmt.Errorf("mount a small file system: %w", err)
	}
	return func() error {
		found, err := filepath.Glob(filepath.Join(at, "ledger.db*"))
		for _, path := range found {
			data, rerr := os.ReadFile(path)
			err = errors.Join(err, rerr, os.WriteFile(filepath.Join(dir, filepath.Base(path)), data, 0o644))
		}
		return errors.Join(err, unmount(at), os.RemoveAll(at))
	}, nil
}

func system(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// fillDisk fills the small file system, keeps it full until spec.Until returns, and frees it.
func fillDisk(ctx context.Context, s *trial.Run, spec chaos.Spec) (f chaos.Fault, err error) {
	f = chaos.Fault{Name: chaos.DiskFull, Target: "ledger", Begun: clock.System().Now(), Shown: chaos.Measured}
	path := filepath.Join(filepath.Dir(s.File.Ledger.DB), "ballast")
	ballast, err := os.Create(path)
	if err != nil {
		return f, err
	}
	defer func() {
		err = errors.Join(err, ballast.Close(), os.Remove(path))
		f.Healed = clock.System().Now()
		s.Say("the disk has space again")
	}()
	written := int64(0)
	fill := func() {
		block := make([]byte, 4096)
		for {
			n, err := ballast.Write(block)
			if written += int64(n); err != nil {
				return
			}
		}
	}
	fill()
	s.Say("the disk is full: %d KB of ballast", written>>10)
	ctx, stop := context.WithCancel(ctx)
	filled := make(chan struct{})
	go func() { // fill what is freed meanwhile
		defer close(filled)
		for s.Hold(ctx, 5*time.Millisecond) == nil {
			fill()
		}
	}()
	err = spec.Until(ctx, inspect.Target{ID: f.Target, URL: s.File.Ledger.URL})
	stop()
	<-filled
	f.Evidence = fmt.Sprintf("%d KB of ballast until no block was left, and the ledger said that it cannot write", written>>10)
	return f, err
}
