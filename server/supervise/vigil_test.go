package supervise

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// Whatever is asked in whatever order: it is killed no later than Reserve before the last
// deadline that came in time, told a grace before that, and nothing extends what is ending.
func TestVigil(t *testing.T) {
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 0))
		ms := func(from, to int) time.Duration { return time.Duration(from+r.IntN(to-from)) * time.Millisecond }
		now := clock.Instant(time.Hour)
		v := vigil{grace: ms(0, 2000), deadline: now.Add(5 * time.Second)}
		latest, ending := v.deadline, false
		for kill := false; !kill; {
			now = now.Add(ms(0, 400))
			switch r.IntN(20) {
			case 0:
				v.stop(now, asked)
				ending = true
			case 1:
				v.kill(now, forced)
				ending = true
			case 2, 3, 4, 5, 6:
				d := now.Add(ms(-3000, 6000))
				if v.extend(d); !ending {
					latest = max(latest, d)
				}
			}
			_, kill = v.due(now)
			ending = ending || v.why != goesOn
			switch {
			case v.deadline != latest:
				t.Fatalf("seed %d: deadline %v, want %v", seed, v.deadline, latest)
			case now >= latest.Add(-Reserve) && !kill:
				t.Fatalf("seed %d: it runs on at %v, deadline %v", seed, now, latest)
			case now >= latest.Add(-Reserve-v.grace) && v.why == goesOn:
				t.Fatalf("seed %d: nobody was told at %v, deadline %v", seed, now, latest)
			case v.next() > latest.Add(-Reserve):
				t.Fatalf("seed %d: it sleeps until %v, deadline %v", seed, v.next(), latest)
			}
		}
	}
}

// SIGTERM comes a grace before SIGKILL, and with no grace not at all.
func TestVigilTells(t *testing.T) {
	start := clock.Instant(time.Hour)
	deadline := start.Add(10 * time.Second)
	v := vigil{grace: time.Second, deadline: deadline}
	for _, step := range []struct {
		at         clock.Instant
		tell, kill bool
	}{
		{start, false, false},
		{deadline.Add(-Reserve - time.Second - 1), false, false},
		{deadline.Add(-Reserve - time.Second), true, false},
		{deadline.Add(-Reserve - 1), false, false},
		{deadline.Add(-Reserve), false, true},
	} {
		if tell, kill := v.due(step.at); tell != step.tell || kill != step.kill {
			t.Errorf("%v before the deadline: tell %v, kill %v", deadline.Sub(step.at), tell, kill)
		}
	}
	v = vigil{deadline: deadline}
	if tell, kill := v.due(deadline.Add(-Reserve)); tell || !kill {
		t.Errorf("without a grace: tell %v, kill %v", tell, kill)
	}
}
