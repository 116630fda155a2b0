package experiment

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	fleetclient "github.com/tenurehq/tenure/app/fleet/client"
	"github.com/tenurehq/tenure/app/lab"
	"github.com/tenurehq/tenure/app/lab/check"
)

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
				return Trial{
					Name: engine + "-" + kind, Engine: engine, TTL: ttl, Nodes: 3, Rate: 300, Rounds: pick(size, 1, 5), Patience: time.Second, Pass: safe("evidence", "baton"),
					play:  func(ctx context.Context, s *stage) error { return s.failDisk(ctx, kind) },
					after: func(_ string, o *Outcome) error { return countAsked(filepath.Join(o.Dir, historyDir), o.Rounds) },
					fleet: func(c *lab.Config) { c.NodeArgs = append(c.NodeArgs, "-sink-patience", ttl.String()) },
				}
			}
			small := func(t Trial) Trial {
				t.prepare = smallDisk
				patient := t.fleet
				t.fleet = func(c *lab.Config) {
					patient(c)
					c.DB = filepath.Join(diskAt(filepath.Dir(c.Dir)), filepath.Base(c.DB))
				}
				return t
			}
			all := []Trial{trial(etcdEngine, diskSync)}
			if size == Full {
				all = append(all, trial(raftEngine, diskSync), trial(etcdEngine, diskNoSpace), trial(raftEngine, diskNoSpace))
			}
			if canMount() {
				all = append(all, small(trial(etcdEngine, diskFull)))
				if size == Full {
					all = append(all, small(trial(raftEngine, diskFull)))
				}
			}
			return all
		},
		Judge: judgeDisk,
	}
}

func judgeDisk(all []Outcome) ([]Threshold, []Table) {
	var bars []Threshold
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
			t.Rows = append(t.Rows, []string{o.Name, fmt.Sprint(i + 1), ms(r.Healed.Sub(r.Begun)), fmt.Sprint(r.Asked), fmt.Sprint(r.Answered), fmt.Sprint(r.Token), fmt.Sprint(r.Next), r.Seen})
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
}

func (s *stage) failDisk(ctx context.Context, kind string) error {
	return s.again(ctx, "the ledger's disk fails", func(ctx context.Context, i int, _ fleetclient.Leader) (Round, error) {
		r := Round{Kind: kind}
		// For more than a leader waits, and for less, in turn.
		d := s.trial.TTL + 2*time.Second
		if i%2 == 1 {
			d = s.trial.TTL / 2
		}
		until := func(ctx context.Context, _ chaos.Leader) error {
			if err := await(ctx, "the ledger saying that it cannot write", func(ctx context.Context) bool { return s.ledger.Healthy(ctx) != nil }); err != nil {
				return err
			}
			r.Begun = now()
			err := s.hold(ctx, d)
			r.Healed = now()
			return err
		}
		f, err := s.broken("", func() (chaos.Fault, error) {
			if kind == diskFull {
				return s.fillDisk(ctx, until)
			}
			return s.chaos.FailDisk(ctx, chaos.Disk{Full: kind == diskNoSpace, For: time.Millisecond, Until: until})
		})
		if err != nil {
			return r, err
		}
		r.Seen = f.Evidence
		next, err := s.writes(ctx)
		if err != nil {
			return r, err
		}
		r.Successor, r.Next = next.ID, uint64(next.Token)
		r.Refused = true
		return r, await(ctx, "the ledger saying that it can write", func(ctx context.Context) bool { return s.ledger.Healthy(ctx) == nil })
	})
}

// countAsked counts, for each round, the callers' calls that were made and over while the
// fault stood, and those of them that were answered with numbers.
func countAsked(history string, rounds []Round) error {
	f, err := os.Open(filepath.Join(history, callsName+".ndjson"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewScanner(f)
	for in.Scan() {
		var c check.Call
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		for i := range rounds {
			if r := &rounds[i]; c.Start >= r.Begun && c.End <= r.Healed && c.Start > 0 {
				if r.Asked++; c.Error == "" && !c.Unknown {
					r.Answered++
				}
			}
		}
	}
	return in.Err()
}
