package experiment

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/chaos"
	"github.com/tenurehq/tenure/lab/check"
)

// ledgerKilled is experiment 10.
func ledgerKilled() Experiment {
	return Experiment{
		Name: "10", Title: "the ledger killed under load", Seed: 10,
		Question:    "What is lost when the ledger is killed with SIGKILL in the middle of its commits, and what does the leader do?",
		Expectation: "Nothing that was acknowledged, and no number is given twice: calls under way become unknown. A leader whose ledger is back before its patience (the TTL) is over keeps its term. One whose ledger stays away for longer steps down by itself, and somebody leads and writes within G7's bound once it is back.",
		Trials: func(size Size) []Trial {
			trial := func(engine string, ttl, gone time.Duration, rounds int) Trial {
				t := newTrial(engine, ttl, pick(size, 500.0, 5000), rounds, loop{what: "killing the ledger", do: killLedger})
				t.fleet = func(c *lab.Config) {
					c.RestartWait = gone
					c.NodeArgs = append(c.NodeArgs, "--sink-patience", ttl.String())
				}
				if gone > ttl { // leaders step down by themselves: G4 leaves those terms to G5
					t.Name, t.Pass = t.Name+longName, safe("evidence", "baton")
				}
				return t
			}
			short := 200 * time.Millisecond
			all := []Trial{trial(etcdEngine, 3*time.Second, short, pick(size, 2, 20))}
			if size == Full {
				all = append(all, trial(raftEngine, 2*time.Second, short, 20), trial(raftEngine, 2*time.Second, 4*time.Second, 5))
			}
			return append(all, trial(etcdEngine, 2*time.Second, 4*time.Second, pick(size, 1, 5)))
		},
		Judge: func(all []Outcome) (bars []Threshold, _ []Table) {
			t := Table{Title: "kills", Head: []string{"trial", "kills", "term kept", "calls answered", "outcome unknown", "stale refused"}}
			for _, o := range all {
				kept, stepped := 0, 0
				for _, r := range o.Rounds {
					if r.Next == r.Token {
						kept++
					}
					if c := o.term(r.Token).Cause; r.Next > r.Token && (c == "unhealthy" || c == "resigned") {
						stepped++
					}
				}
				if strings.HasSuffix(o.Name, longName) {
					bars = append(bars, count(o.Name+": the leader steps down by itself", stepped, o.Trial.Rounds))
				} else {
					bars = append(bars, count(o.Name+": the leader keeps its term", kept, o.Trial.Rounds))
				}
				bars = append(bars, none(o.Name+": numbers given twice", o.Damage.Reused), none(o.Name+": stale writes accepted", o.Damage.Applied))
				v, _ := o.Report.Verdict("sequence")
				t.add(o.Name, len(o.Rounds), kept, v.Count("calls answered"), v.Count("calls of unknown outcome"), o.Damage.Refused)
			}
			return bars, []Table{t}
		},
	}
}

// longName marks trials in which the ledger stays away for longer than a leader waits.
const longName = "-long"

func killLedger(ctx context.Context, s *trialRun, _ int, r *Round) error {
	r.Kind = "kill"
	f, err := s.inject(ctx, r, chaos.Spec{Kind: chaos.Kill, Targets: []string{"ledger"}})
	if err != nil {
		return err
	}
	r.Seen = f.Evidence
	return s.recovered(ctx, r)
}

// The ways in which a disk fails.
const (
	diskSync    = "sync"      // every sync ends with an I/O error
	diskNoSpace = "no-space"  // every write is told that there is no space
	diskFull    = "full-disk" // a small file system is full
)

// disk is experiment 12.
func disk() Experiment {
	return Experiment{
		Name: "12", Title: "disk full and syncs that fail, at the ledger", Seed: 12,
		Question:    "Does the ledger acknowledge what is not on disk when its disk fails, what is lost, and does everything come back when the disk does?",
		Expectation: "While no sync (or no write) succeeds, no call is answered: their outcome is unknown. The ledger says in /healthz that it cannot write. What was acknowledged is all there, no number is given twice. A leader that cannot write for longer than its patience steps down; when the disk is well, somebody writes within G7's bound, and nobody has to restart anything. A disk that is really full lets through what needs no new block.",
		Trials: func(size Size) []Trial {
			trial := func(engine, kind string) Trial {
				const ttl = 2 * time.Second
				t := newTrial(engine, ttl, 300, pick(size, 1, 5), diskScript(kind))
				t.Name, t.Pass = engine+"-"+kind, safe("evidence", "baton")
				t.after = func(_ string, o *Outcome) error { return countAsked(filepath.Join(o.Dir, historyDir), o.Rounds) }
				t.fleet = func(c *lab.Config) {
					c.NodeArgs = append(c.NodeArgs, "--sink-patience", ttl.String())
					if kind == diskFull {
						c.DB = filepath.Join(diskAt(filepath.Dir(c.Dir)), filepath.Base(c.DB))
					}
				}
				if kind == diskFull {
					t.prepare = smallDisk
				}
				return t
			}
			all := []Trial{trial(etcdEngine, diskSync)}
			if size == Full {
				all = append(all, trial(raftEngine, diskSync), trial(etcdEngine, diskNoSpace), trial(raftEngine, diskNoSpace))
			}
			if canMount() {
				all = append(all, trial(etcdEngine, diskFull))
				if size == Full {
					all = append(all, trial(raftEngine, diskFull))
				}
			}
			return all
		},
		Judge: func(all []Outcome) (bars []Threshold, _ []Table) {
			t := Table{Title: "disks that failed", Head: []string{"trial", "round", "for", "asked", "answered", "term", "after", "what shows it"}}
			for _, o := range all {
				sick, long, stepped, asked, answered := 0, 0, 0, 0, int64(0)
				for i, r := range o.Rounds {
					if r.Refused {
						sick++
					}
					if r.Healed.Sub(r.Begun) > o.TTL+time.Second {
						if long++; r.Next > r.Token {
							stepped++
						}
					}
					if answered += r.Answered; r.Asked > 0 {
						asked++
					}
					t.add(o.Name, i+1, r.Healed.Sub(r.Begun), r.Asked, r.Answered, r.Token, r.Next, r.Seen)
				}
				bars = append(bars, count(o.Name+": the ledger said that it cannot write, and that it can again", sick, o.Trial.Rounds))
				if !strings.HasSuffix(o.Name, diskFull) {
					bars = append(bars, count(o.Name+": rounds in which callers asked meanwhile", asked, o.Trial.Rounds), none(o.Name+": calls answered while nothing could be made durable", answered))
					if long > 0 {
						bars = append(bars, count(o.Name+": the leader steps down when it cannot write for longer than the TTL", stepped, long))
					}
				}
				bars = append(bars, none(o.Name+": numbers given twice", o.Damage.Reused), none(o.Name+": stale writes accepted", o.Damage.Applied))
			}
			return bars, []Table{t}
		},
	}
}

func diskScript(kind string) loop {
	return loop{what: "the ledger's disk fails", do: func(ctx context.Context, s *trialRun, i int, r *Round) error {
		r.Kind = kind
		// For more than a leader waits, and for less, in turn.
		d := s.trial.TTL + 2*time.Second
		if i%2 == 1 {
			d = s.trial.TTL / 2
		}
		spec := chaos.Spec{Kind: chaos.DiskSync, For: time.Millisecond, Until: func(ctx context.Context, _ chaos.Target) error {
			if err := await(ctx, "the ledger saying that it cannot write", func(ctx context.Context) bool { return s.ledger.Healthy(ctx) != nil }); err != nil {
				return err
			}
			r.Begun = now()
			err := s.hold(ctx, d)
			r.Healed = now()
			return err
		}}
		var f chaos.Fault
		var err error
		switch kind {
		case diskFull:
			f, err = s.written("", func() (chaos.Fault, error) { return s.fillDisk(ctx, spec) })
		case diskNoSpace:
			spec.Kind = chaos.DiskFull
			fallthrough
		default:
			f, err = s.inject(ctx, r, spec)
		}
		if err != nil {
			return err
		}
		r.Seen = f.Evidence
		if err := s.recovered(ctx, r); err != nil {
			return err
		}
		r.Refused = true
		return await(ctx, "the ledger saying that it can write", func(ctx context.Context) bool { return s.ledger.Healthy(ctx) == nil })
	}}
}

// countAsked counts, for each round, the callers' calls that were made and over while the
// fault stood, and those of them that were answered with numbers.
func countAsked(history string, rounds []Round) error {
	return eachLine(filepath.Join(history, callsName+".ndjson"), "", func(c check.Call) error {
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

// diskSize is that of the file system that is filled: some megabytes, for the database
// and its log.
const diskSize = 16 << 20

// diskAt is where the trial's small file system is: not in its folder, which could not be
// removed if a lab that was killed had left it mounted.
func diskAt(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(os.TempDir(), fmt.Sprintf("tenure-disk-%x", sum[:8]))
}

// canMount: a small file system of its own needs root, and not every root may. Without,
// the disk is full only for the ledger's system calls.
func canMount() bool {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return false
	}
	at, err := os.MkdirTemp("", "tenure-disk-")
	if err != nil {
		return false
	}
	defer func() { _ = os.Remove(at) }()
	return mountSmall(at) == nil && system("umount", "-l", at) == nil
}

func mountSmall(at string) error {
	return system("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", diskSize), "tenure-lab", at)
}

// smallDisk mounts a small file system for a trial, in place of one that was left.
// Undoing brings what is on it into the trial's folder first.
func smallDisk(dir string) (undo func() error, err error) {
	at := diskAt(dir)
	if err := os.MkdirAll(at, 0o700); err != nil {
		return nil, err
	}
	_ = system("umount", "-l", at) // seldom is there something to unmount
	if err := mountSmall(at); err != nil {
		return nil, fmt.Errorf("no permission for a small file system: %w", err)
	}
	return func() error {
		found, err := filepath.Glob(filepath.Join(at, "ledger.db*"))
		for _, path := range found {
			err = errors.Join(err, copyFile(filepath.Join(dir, filepath.Base(path)), path))
		}
		return errors.Join(err, system("umount", "-l", at), os.RemoveAll(at))
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

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// fillDisk fills the small file system, keeps it full until the caller has seen what it
// wants to see, and frees it again.
func (s *trialRun) fillDisk(ctx context.Context, spec chaos.Spec) (f chaos.Fault, err error) {
	f = chaos.Fault{Name: chaos.DiskFull, Target: "ledger", Begun: now(), Shown: chaos.Measured}
	path := filepath.Join(filepath.Dir(s.file.Ledger.DB), "ballast")
	ballast, err := os.Create(path)
	if err != nil {
		return f, err
	}
	defer func() {
		err = errors.Join(err, ballast.Close(), os.Remove(path))
		f.Healed = now()
		s.say("the disk has space again")
	}()
	fill := func() (n int64) {
		block := make([]byte, 4096)
		for {
			wrote, err := ballast.Write(block)
			if n += int64(wrote); err != nil {
				return n
			}
		}
	}
	written := fill()
	s.say("the disk is full: %d KB of ballast", written>>10)
	ctx, stop := context.WithCancel(ctx)
	filled := make(chan struct{})
	go func() { // what is freed meanwhile is taken too
		defer close(filled)
		for s.hold(ctx, 5*time.Millisecond) == nil {
			written += fill()
		}
	}()
	err = spec.Until(ctx, chaos.Target{ID: f.Target, URL: s.file.Ledger.URL})
	stop()
	<-filled
	f.Evidence = fmt.Sprintf("%d KB of ballast until no block was left, and the ledger said that it cannot write", written>>10)
	return f, err
}
