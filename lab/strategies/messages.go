package strategies

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/tenurehq/tenure/lab/measure"
)

// Election is how many messages one election of Bully or Ring took after the leader had died.
type Election struct {
	Strategy string
	Nodes    int
	// Worst: for Bully the lowest begins, for Ring all begin at once. Otherwise one begins that
	// the seed chooses.
	Worst    bool
	Seed     uint64
	Messages int64
}

// elections are the elections to count.
func elections(name string, nodes []int, seed uint64) (all []Election) {
	for _, n := range nodes {
		all = append(all, Election{Strategy: name, Nodes: n, Worst: true, Seed: seed}, Election{Strategy: name, Nodes: n, Seed: seed})
	}
	return all
}

// elect counts the messages of one election: nobody begins another.
func (a *arena) elect(ctx context.Context, e Election) (Election, error) {
	e.Messages = 0
	// An answer may take 15 s before a candidate is given up.
	f, err := a.start(ctx, options{nodes: e.Nodes, ttl: time.Minute, change: func(c *Config) { c.Manual = true }})
	if err != nil {
		return e, err
	}
	defer f.stop()
	f.kill(f.procs[e.Nodes-1])
	begin := []*proc{f.procs[rand.New(rand.NewPCG(e.Seed, 0)).IntN(e.Nodes-1)]}
	switch {
	case e.Worst && a.name == "ring":
		begin = f.except(nil)
	case e.Worst:
		begin = f.procs[:1]
	}
	for _, p := range begin {
		f.send(p, message{Op: opElect})
	}
	// It is over when all is quiet: the bounds above end nothing within this time.
	for same := 0; same < 10; {
		if !pause(ctx, 100*time.Millisecond) {
			return e, context.Cause(ctx)
		}
		_, n, err := f.count(ctx, f.except(nil))
		if err != nil {
			return e, err
		}
		if same++; n != e.Messages {
			e.Messages, same = n, 0
		}
		if f.leader(ctx, 0) == nil {
			same = 0
		}
	}
	return e, nil
}

// expected is what the algorithm needs with n candidates of which the highest is dead.
func (e Election) expected() int64 {
	n := int64(e.Nodes)
	switch {
	case e.Strategy == "ring" && e.Worst:
		return 2 * n * (n - 1)
	case e.Strategy == "ring":
		return 2 * n
	case !e.Worst:
		return 0 // of Bully: it depends on who begins
	default: // questions, answers, announcements
		return n*(n-1)/2 + (n-1)*(n-2)/2 + n - 2
	}
}

// growth fits messages = c·n^k and returns k.
func growth(all []Election) float64 {
	var n, sx, sy, sxx, sxy float64
	for _, e := range all {
		x, y := math.Log(float64(e.Nodes)), math.Log(float64(e.Messages))
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	if n < 2 {
		return 0 // there is no growth to see
	}
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

// Elections makes the table of messages per election, with the exponent of the growth.
func Elections(all []Election) measure.Table {
	t := measure.Table{Title: "messages per election", Head: []string{"strategy", "case", "candidates", "messages", "grows like n to the"}}
	for _, name := range []string{"bully", "ring"} {
		for _, worst := range []bool{false, true} {
			of := slices.DeleteFunc(slices.Clone(all), func(e Election) bool { return e.Strategy != name || e.Worst != worst })
			for _, e := range of {
				label := "typical"
				if worst {
					label = "worst"
				}
				t.Add(e.Strategy, label, e.Nodes, e.Messages, strconv.FormatFloat(growth(of), 'f', 2, 64))
			}
		}
	}
	return t
}
