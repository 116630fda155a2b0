package lease

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// What a person is told about the default. Change it only with the reason at
// hand: these are promises.
func TestExplainDefault(t *testing.T) {
	got := Default().Explain(Assume{
		RoundTrip: 10 * time.Millisecond,
		Pauses: []Pause{
			{Length: 200 * time.Millisecond, PerDay: 400},
			{Length: 6 * time.Second, PerDay: 0.1},
		},
	}).String()
	const want = `trust                      7.64s            from the sending of a keep-alive: TTL 8s less 2 % drift, less 200ms margin
pause always survived      5.63s            with a beat every 2s, 10ms round trip, 0s grace
false failovers            0.57 a month     by the pauses that were given
crash to vacancy           6s to 8.01s      plus what the engine adds
crash to next leader       8.19s            at most, when calls are answered and the first in line acts
                           12.74s           at most, when one candidate does not act and one call hangs
                           about 30ms       when a keeper proves that the process died; not if its host died
two pass Check             never            while clocks drift by 2 % at most
                           84.656ms         at 5.5 %, where the margin (good to 4.5 %) no longer covers it
two act without Check      6s               the longest pause; a sink refuses the stale one
calls to the store         0.5 a second     per process, for any number of groups
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Without pauses nothing is claimed about them, and an incomplete Timing is
// completed first.
func TestExplainWithoutPauses(t *testing.T) {
	got := Timing{TTL: 3 * time.Second, Grace: 500 * time.Millisecond}.Explain(Assume{}).String()
	const want = `trust                      2.865s           from the sending of a keep-alive: TTL 3s less 2 % drift, less 75ms margin
pause always survived      1.615s           with a beat every 750ms, 0s round trip, 500ms grace
crash to vacancy           2.25s to 3s      plus what the engine adds
crash to next leader       3.06s            at most, when calls are answered and the first in line acts
                           4.798s           at most, when one candidate does not act and one call hangs
                           milliseconds     when a keeper proves that the process died; not if its host died
two pass Check             never            while clocks drift by 2 % at most
                           31.746ms         at 5.5 %, where the margin (good to 4.5 %) no longer covers it
two act without Check      a pause          as long as the longest; a sink refuses the stale one
calls to the store         1.33 a second    per process, for any number of groups
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// survives plays a process that keeps a session alive and stands still from
// begin for length: what falls due meanwhile is done on waking, trust first.
func survives(timing Timing, roundTrip, begin, length time.Duration) bool {
	const none = math.MaxInt64
	var (
		sent       time.Duration // of the keep-alive under way
		answer     = roundTrip   // when it arrives; none: nothing is under way
		beat       = time.Duration(none)
		trustUntil = timing.window() // given by the opening
	)
	for now := time.Duration(0); now < begin+length+2*timing.TTL; {
		now = max(now, min(beat, answer, trustUntil-timing.Grace))
		if now >= begin && now < begin+length {
			now = begin + length
		}
		if now >= trustUntil-timing.Grace {
			return false
		}
		if now >= answer {
			trustUntil = sent + timing.window()
			beat, answer = sent+timing.Beat, none
		}
		if now >= beat {
			sent, answer, beat = now, now+roundTrip, none
		}
	}
	return true
}

var explained = []struct {
	name      string
	timing    Timing
	roundTrip time.Duration
}{
	{"default, instant", Default(), 0},
	{"default, near", Default(), 10 * time.Millisecond},
	{"default, slow", Default(), 700 * time.Millisecond},
	{"default, slower than half a beat", Default(), 1300 * time.Millisecond},
	{"default, a beat", Default(), 2 * time.Second},
	{"slower than a beat", WAN(), 3500 * time.Millisecond},
	{"grace", Timing{TTL: 3 * time.Second, Grace: 500 * time.Millisecond}.Resolve(), 100 * time.Millisecond},
}

// The probability that a pause ends a term is what playing it out gives, with
// the pause at a random moment of the beat.
func TestPausesPlayedOut(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const plays = 4000
	for _, tt := range explained {
		period := max(tt.timing.Beat, tt.roundTrip)
		tolerated := tt.timing.tolerated(tt.roundTrip)
		for _, length := range []time.Duration{
			tolerated / 2,
			tolerated + min(tt.roundTrip, period/10)/2,
			tolerated + tt.roundTrip,
			tolerated + period/4,
			tolerated + period*3/4,
			tolerated + period + tt.roundTrip,
		} {
			ended := 0
			for range plays {
				begin := 4*period + time.Duration(random.Int64N(int64(period)))
				if !survives(tt.timing, tt.roundTrip, begin, length) {
					ended++
				}
			}
			want := tt.timing.endsTerm(length, tt.roundTrip)
			got := float64(ended) / plays
			if slack := 4*math.Sqrt(want*(1-want)/plays) + 1e-9; math.Abs(got-want) > slack {
				t.Errorf("%s: a pause of %v ends a term with probability %.4f by the formula, %.4f played out", tt.name, length, want, got)
			}
		}
	}
}

// The tolerated pause is tolerated at every moment, and one that is a little
// longer is not.
func TestPauseTolerated(t *testing.T) {
	for _, tt := range explained {
		period := max(tt.timing.Beat, tt.roundTrip)
		e := tt.timing.Explain(Assume{RoundTrip: tt.roundTrip})
		longer := 0
		for i := range time.Duration(2000) {
			begin := 4*period + i*period/2000
			if !survives(tt.timing, tt.roundTrip, begin, e.PauseTolerated-1) {
				t.Fatalf("%s: a pause of %v, said to be survived, ends a term when it begins %v into the beat", tt.name, e.PauseTolerated-1, i*period/2000)
			}
			if !survives(tt.timing, tt.roundTrip, begin, e.PauseTolerated+period/100) {
				longer++
			}
		}
		if longer == 0 {
			t.Errorf("%s: a pause longer than %v by a hundredth of a beat ends no term either: the bound is too timid", tt.name, e.PauseTolerated)
		}
	}
}

// A month has 30 days, and pauses of several kinds add up.
func TestFalseFailovers(t *testing.T) {
	timing := Default()
	e := timing.Explain(Assume{Pauses: []Pause{
		{Length: time.Hour, PerDay: 2},                           // always fatal
		{Length: timing.tolerated(0) + timing.Beat/4, PerDay: 1}, // every fourth time
		{Length: time.Second, PerDay: 1e6},                       // never
	}})
	if want := 30 * (2 + 0.25); math.Abs(e.FalseFailoversPerMonth-want) > 1e-9 {
		t.Errorf("%v false failovers a month, want %v", e.FalseFailoversPerMonth, want)
	}
	if e.ContextOverlap != time.Hour {
		t.Errorf("overlap without Check is %v, want the longest pause", e.ContextOverlap)
	}
}

// Two pass Check at once only if the clocks differ by more than the stated
// drift: the leader's trust, read on a slow clock, is over before its session
// expires at the store.
func TestCheckOverlap(t *testing.T) {
	for _, timing := range []Timing{Default(), LAN(), WAN(), Cautious()} {
		e := timing.Explain(Assume{})
		for drift := 0.0; drift <= timing.Drift; drift += timing.Drift / 50 {
			if o := timing.overlap(drift); o != e.CheckOverlap || o != 0 {
				t.Errorf("TTL %v: two believers for %v at a drift of %v, within the bound of %v", timing.TTL, o, drift, timing.Drift)
			}
		}
		if o := timing.overlap(e.DriftCovered - 1e-6); o != 0 {
			t.Errorf("TTL %v: two believers for %v at a drift that the margin covers", timing.TTL, o)
		}
		if o := timing.overlap(e.DriftCovered + 1e-6); o == 0 {
			t.Errorf("TTL %v: nobody overlaps beyond %v: the bound is too timid", timing.TTL, e.DriftCovered)
		}
	}
}

// A round trip cannot be longer than a call may take, nor negative.
func TestExplainBoundsTheRoundTrip(t *testing.T) {
	timing := Default()
	if got := timing.Explain(Assume{RoundTrip: time.Hour}).Assume.RoundTrip; got != timing.CallTimeout {
		t.Errorf("a round trip of an hour counts as %v, want CallTimeout", got)
	}
	if got := timing.Explain(Assume{RoundTrip: -time.Hour}).PauseTolerated; got != timing.tolerated(0) {
		t.Errorf("a negative round trip lets a pause of %v be tolerated, want %v", got, timing.tolerated(0))
	}
}
