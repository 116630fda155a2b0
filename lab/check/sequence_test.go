package check

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// broken compares every two calls. The checks must come to the same result by looking at each
// call once.
func broken(calls []history.Call) bool {
	for i, a := range calls {
		for j, b := range calls {
			if i == j {
				continue
			}
			if a.First <= b.Last && b.First <= a.Last {
				return true
			}
			if a.End < b.Start && (a.Last >= b.First || a.Token > b.Token) {
				return true
			}
			if a.Last < b.First && a.Token > b.Token {
				return true
			}
		}
	}
	return false
}

// judge runs both checks on calls, which are in the order of their ends.
func judge(t testing.TB, calls []history.Call) (scan, porcupine verdict.Verdict) {
	s := newScan(facts.New(), table(t.Context(), ""), []string{"sequence", "linearizable"})
	for i, c := range calls {
		c.Line = history.Place{File: "calls", Line: i + 1}
		s.see(c)
	}
	both := s.verdicts()
	return both[0], both[1]
}

// callsOf makes calls of bytes, one of every three.
func callsOf(data []byte) []history.Call {
	var calls []history.Call
	end, next := clock.Instant(100), uint64(40)
	for ; len(data) >= 3 && len(calls) < 60; data = data[3:] {
		end += clock.Instant(data[0] % 4)
		c := history.Call{Start: end - clock.Instant(data[1]%32), End: end, Token: fence.Token(1 + len(calls)/8)}
		c.First = next + uint64(data[2]%5)
		c.Last = c.First + uint64(data[2]/5%3)
		switch data[2] / 16 {
		case 0:
			c.First -= 9
			c.Last -= 9
		case 1:
			c.Token = max(1, c.Token-1)
		default:
			next = c.Last + 1
		}
		calls = append(calls, c)
	}
	return calls
}

// For all calls: both checks fail exactly when two calls contradict each other.
func FuzzSequence(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		data := make([]byte, 3*(2+rng.IntN(40)))
		for i := range data {
			data[i] = byte(rng.Uint32())
			if i%3 == 2 && rng.IntN(20) > 0 {
				data[i] |= 0x40
			}
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		calls := callsOf(data)
		if len(calls) == 0 {
			return
		}
		want := verdict.Pass
		if broken(calls) {
			want = verdict.Fail
		}
		scan, porcupine := judge(t, calls)
		if scan.Result != want || porcupine.Result != want {
			t.Fatalf("want %s\n%v\n%v\n%+v", want, scan, porcupine, calls)
		}
	})
}

// A number may be handed out after a larger one, but not to a call that began after the larger
// one was known.
func TestOutOfOrderOnly(t *testing.T) {
	calls := []history.Call{{Start: 1, End: 5, First: 9, Last: 9, Token: 1}, {Start: 6, End: 8, First: 3, Last: 3, Token: 1}}
	scan, porcupine := judge(t, calls)
	if scan.Result != verdict.Fail || porcupine.Result != verdict.Fail || scan.Findings[0].At[0].Line != 2 {
		t.Errorf("%v\n%v", scan, porcupine)
	}
	calls[1].Start = 5 // they may be concurrent
	scan, porcupine = judge(t, calls)
	if scan.Result != verdict.Pass || porcupine.Result != verdict.Pass {
		t.Errorf("%v\n%v", scan, porcupine)
	}
}

// Porcupine finds a number that is out of order by many windows.
func TestLinearizableAcrossWindows(t *testing.T) {
	var calls []history.Call
	for i := range clock.Instant(3*window + 10) {
		calls = append(calls, history.Call{Start: 10 * i, End: 10*i + 25, First: uint64(i) + 10, Last: uint64(i) + 10, Token: 1})
	}
	if scan, porcupine := judge(t, calls); scan.Result != verdict.Pass || porcupine.Result != verdict.Pass {
		t.Fatalf("%v\n%v", scan, porcupine)
	}
	at := 2 * window // the first of its window: no other call in it contradicts it
	calls[at].First, calls[at].Last = 5, 5
	_, v := judge(t, calls)
	if v.Result != verdict.Fail || v.Findings[0].At[0] != (history.Place{File: "calls", Line: at + 1}) {
		t.Fatalf("%v", v)
	}
}

// With 256 concurrent calls porcupine ends soon.
func TestLinearizableConcurrent(t *testing.T) {
	const n, conns = 2 * window, 256
	rng := rand.New(rand.NewPCG(4, 4))
	order := rng.Perm(conns)
	calls := make([]history.Call, n)
	for i := range calls {
		// Within a commit the answers arrive in any order.
		number := i/conns*conns + order[i%conns]
		calls[i] = history.Call{Start: clock.Instant(i/conns*1000 - 900), End: clock.Instant(i/conns*1000 + 100 + i%conns), First: uint64(number) + 1, Last: uint64(number) + 1, Token: 1}
	}
	began := time.Now()
	_, v := judge(t, calls)
	if v.Result != verdict.Pass || v.Count("windows") != 2 {
		t.Fatalf("%v", v)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Fatalf("took %v", took)
	}
}
