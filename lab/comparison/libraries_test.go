package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
)

const (
	first, second = "first", "second"
	rounds        = 5
	winding       = 2 * time.Second
	// inLine is the time for a second candidate to be ready: client-go polls every 2 s plus up
	// to 120 %, and counts a lease from when it saw it.
	inLine = 6 * time.Second
	// beat is longer than the keep-alive interval of every library.
	beat = 3 * time.Second
)

// pair starts one candidate that leads and one that waits.
func (a arena) pair(t *testing.T, c candidacy) (leader, next *standing) {
	t.Helper()
	leaders, nexts := a.pairs(t, c)
	return leaders[0], nexts[0]
}

// pairs does so in several groups at the same time.
func (a arena) pairs(t *testing.T, groups ...candidacy) (leaders, nexts []*standing) {
	t.Helper()
	for _, c := range groups {
		c.ID = first
		leaders = append(leaders, a.stands(t, c))
	}
	for i, c := range groups {
		leaders[i].must(evLeads)
		c.ID, c.Engine = second, ""
		nexts = append(nexts, a.stands(t, c))
	}
	time.Sleep(inLine)
	return leaders, nexts
}

// Each winner gets a number that is larger than all before.
func TestToken(t *testing.T) {
	r := newRow(t)
	inEach(t, r, func(t *testing.T, a arena) {
		var tokens, said []string
		last := uint64(0)
		for i := range 3 {
			s := a.stands(t, candidacy{ID: fmt.Sprintf("c%d", i), Group: "token", Short: true})
			won := s.must(evLeads)
			if a.library == tenureLead && won.Token <= last {
				t.Errorf("token %d after %d", won.Token, last)
			}
			last = won.Token
			tokens, said = append(tokens, fmt.Sprint(won.Token)), append(said, won.Said)
			s.ask(askStop)
			<-s.Exited
		}
		switch a.library {
		case tenureLead:
			r.say(a.library, "yes: %s", strings.Join(tokens, ", "))
		case clientGo:
			r.say(a.library, "no; `leaseTransitions` of the object was %s", strings.Join(said, ", "))
		default:
			if slices.Sort(said); len(slices.Compact(said)) != len(tokens) {
				t.Errorf("the values of the lock are not random: %v", said)
			}
			r.say(a.library, "no; the value of the lock is random")
		}
	})
}

// A key that does not compare tokens accepts a paused leader's late write, also with Tenure.
func TestLateWritePlain(t *testing.T) { lateWrite(t, askPlain, plainKey) }

// A key that compares tokens refuses a paused leader's late write.
func TestLateWriteFenced(t *testing.T) { lateWrite(t, askFenced, fencedKey) }

func lateWrite(t *testing.T, how, key string) {
	r := newRow(t)
	inEach(t, r, func(t *testing.T, a arena) {
		sink := servertest.Redis(t)
		leader, next := a.pair(t, candidacy{Group: "late", Short: true, Sink: sink.Addr()})
		leader.ask(how)
		if e := leader.must(evChecked); e.Said != "true" {
			t.Fatalf("the leader does not believe: %s", e.Said)
		}
		leader.pause()
		next.must(evLeads)
		next.ask(how)
		next.ask(askGo)
		wrote := next.must(evWrote)
		leader.resume()
		leader.ask(askGo)
		late := leader.must(evWrote)
		value := get(t, sink.Addr(), key)
		switch {
		case how == askFenced && wrote.Said != "" && late.Said != "":
			r.say(a.library, "no token to compare")
		case value == first:
			r.say(a.library, "takes effect")
		case value == second && late.Said != "":
			r.say(a.library, "is refused")
		default:
			t.Fatalf("the key is %q, the new leader was told %q and the old %q", value, wrote.Said, late.Said)
		}
		if how == askFenced && a.library == tenureLead && value != second {
			t.Errorf("the late write took effect: %q", value)
		}
	})
}

func get(t *testing.T, addr, key string) string {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	n, err := client.Exists(ctx, key).Result()
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		return ""
	}
	value, err := client.Get(ctx, key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// A leader that is cut off stops believing before the next leads.
func TestCutOff(t *testing.T) {
	r := newRow(t)
	inEach(t, r, func(t *testing.T, a arena) {
		r.say(a.library, "%s", a.variants(t, func(t *testing.T, c candidacy) string {
			p := enginetest.NewProxy(t, a.engine)
			c.Short, c.Engine = true, p.Addr()
			leaders, nexts := a.pairs(t, several("cut", c)...)
			p.Cut()
			var both []time.Duration
			for i, leader := range leaders {
				both = append(both, leader.must(evDoubts).At.Sub(nexts[i].must(evLeads).At))
			}
			return a.believed(t, both)
		}))
	})
}

// An engine that lost its data does not elect a second leader while the first believes.
func TestDataLost(t *testing.T) {
	const quiet = 20 * time.Second
	r := newRow(t)
	inEach(t, r, func(t *testing.T, a arena) {
		leaders, nexts := a.pairs(t, several("lost", candidacy{})...)
		a.lose(t)
		time.Sleep(quiet)
		var both []time.Duration
		leading := 0
		for i, leader := range leaders {
			doubts, ended := leader.first(evDoubts, 0)
			leads, began := nexts[i].first(evLeads, 0)
			switch {
			case began && ended:
				both = append(both, doubts.At.Sub(leads.At))
			case began:
				both = append(both, quiet)
			}
			if began || !ended || leader.count(evLeads) > 1 {
				leading++
			}
		}
		switch {
		case leading == 0:
			r.say(a.library, "never: nobody leads on it")
		case len(both) == 0:
			r.say(a.library, "never: the first goes on")
		default:
			r.say(a.library, "%s", a.believed(t, both))
		}
	})
}

// The next leader begins after the work of the leader before has returned.
func TestResign(t *testing.T) {
	r := newRow(t)
	inEach(t, r, func(t *testing.T, a arena) {
		r.say(a.library, "%s", a.variants(t, func(t *testing.T, c candidacy) string {
			c.Short, c.Winding = true, winding
			leaders, nexts := a.pairs(t, several("resign", c)...)
			for _, leader := range leaders {
				leader.ask(askStop)
			}
			earliest := wait
			for i, leader := range leaders {
				earliest = min(earliest, nexts[i].must(evLeads).At.Sub(leader.must(evReturned).At))
			}
			if earliest >= 0 {
				return seconds(earliest) + " after the work has returned"
			}
			if a.library == tenureLead {
				t.Errorf("the next began %v before the work had returned", -earliest)
			}
			return fmt.Sprintf("**%s before** the work has returned", seconds(-earliest))
		}))
	})
}

// several returns one group per round.
func several(name string, c candidacy) []candidacy {
	var all []candidacy
	for i := range rounds {
		c.Group = fmt.Sprintf("%s-%t-%d", name, c.Release, i)
		all = append(all, c)
	}
	return all
}

// variants tests client-go with and without ReleaseOnCancel. That is its only way to hand over
// before the lease expires, and it has other effects too.
func (a arena) variants(t *testing.T, run func(t *testing.T, c candidacy) string) string {
	t.Helper()
	text := run(t, candidacy{})
	if a.library == clientGo {
		text += "; with `ReleaseOnCancel` " + run(t, candidacy{Release: true})
	}
	return text
}

// believed says for how long two believed: from the beginning of the next term until the first
// leader stopped believing.
func (a arena) believed(t *testing.T, both []time.Duration) string {
	t.Helper()
	longest := slices.Max(both)
	if longest <= 0 {
		return fmt.Sprintf("never: at least %s between them", seconds(-longest))
	}
	if a.library == tenureLead {
		t.Errorf("two believed for %v", longest)
	}
	n := 0
	for _, b := range both {
		if b > 0 {
			n++
		}
	}
	return fmt.Sprintf("**up to %s** (in %d of %d)", seconds(longest), n, rounds)
}

// How long a failover takes after a crash with the defaults of each library.
func TestCrashDefaults(t *testing.T) { crash(t, false) }

// How long a failover takes after a crash with short leases.
func TestCrashShort(t *testing.T) { crash(t, true) }

func crash(t *testing.T, short bool) {
	r := newRow(t)
	inEach(t, r, func(t *testing.T, a arena) {
		leaders, nexts := a.pairs(t, several("crash", candidacy{Short: short})...)
		took := make([]time.Duration, rounds)
		var dying sync.WaitGroup
		for i, leader := range leaders {
			dying.Go(func() {
				time.Sleep(rand.N(beat)) // at a random moment between two beats
				killed := time.Now()
				leader.Kill()
				if e, ok := nexts[i].first(evLeads, wait); ok {
					took[i] = e.At.Sub(killed)
				}
			})
		}
		dying.Wait()
		if slices.Contains(took, 0) {
			t.Fatalf("nobody led: %v", took)
		}
		slices.Sort(took)
		r.say(a.library, "%s (%s to %s)", seconds(took[len(took)/2]), seconds(took[0]), seconds(took[len(took)-1]))
	})
}
