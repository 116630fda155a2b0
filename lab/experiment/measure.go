package experiment

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab/check"
)

// series are measurements, in order.
type series []time.Duration

func (s series) at(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Clone(s)
	slices.Sort(sorted)
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func ms(d time.Duration) string {
	if d.Abs() < 10*time.Millisecond {
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.0f ms", float64(d)/1e6)
}

// row is a line of a table: how many, median, 95th percentile, longest.
func (s series) row(name string) []string {
	if len(s) == 0 {
		return []string{name, "0", "", "", ""}
	}
	return []string{name, fmt.Sprint(len(s)), ms(s.at(0.5)), ms(s.at(0.95)), ms(s.at(1))}
}

func seriesHead(of string) []string { return []string{of, "n", "p50", "p95", "max"} }

// change is one change of leader: the term that ended and the next that wrote.
type change struct{ old, next check.Term }

// gap is from the old leader's last attempt to write to the new one's first, whatever
// became of them.
func (c change) gap() time.Duration { return c.next.FirstAttempt.Sub(c.old.LastAttempt) }

// changeOf finds the change that a round was about.
func changeOf(r check.Report, round Round) (change, bool) {
	var c change
	for _, t := range r.Terms {
		if uint64(t.Token) == round.Token {
			c.old = t
		}
		if uint64(t.Token) > round.Token && t.Attempts > 0 && c.next.Token == 0 {
			c.next = t
		}
	}
	return c, c.old.Attempts > 0 && c.next.Attempts > 0
}

// failover is from the last write of the term that ended to the first of a later one,
// each when it was sent, of those that the ledger acknowledged: an attempt that fails
// does not end it.
func (o Outcome) failover(r Round) (time.Duration, bool) {
	var old, next effect
	for _, e := range o.Effects {
		switch {
		case uint64(e.Token) == r.Token:
			old = e
		case uint64(e.Token) > r.Token && (next.Token == 0 || e.Token < next.Token):
			next = e
		}
	}
	return next.First.Sub(old.Last), old.Token > 0 && next.Token > 0
}

// silence is how long no caller had a number.
func (o Outcome) silence(r Round) (time.Duration, bool) {
	var old, next check.Term
	for _, t := range o.Report.Terms {
		switch {
		case t.Answers == 0:
		case uint64(t.Token) == r.Token:
			old = t
		case uint64(t.Token) > r.Token && next.Token == 0:
			next = t
		}
	}
	return next.FirstAnswer.Sub(old.LastAnswer), old.Token > 0 && next.Token > 0
}

// count is a threshold on a number of things.
func count(name string, got, want int) Threshold {
	return Threshold{Name: name, Value: fmt.Sprintf("%d of %d", got, want), Bar: fmt.Sprintf("%d of %d", want, want), OK: got == want && want > 0}
}

func below(name string, s series, bar time.Duration, n int) Threshold {
	return Threshold{
		Name: name, Value: fmt.Sprintf("max %s of %d", ms(s.at(1)), len(s)), Bar: fmt.Sprintf("< %s, %d rounds", ms(bar), n),
		OK: len(s) == n && n > 0 && s.at(1) < bar,
	}
}

func above(name string, got int64) Threshold {
	return Threshold{Name: name, Value: fmt.Sprint(got), Bar: "> 0", OK: got > 0}
}

func none(name string, got int64) Threshold {
	return Threshold{Name: name, Value: fmt.Sprint(got), Bar: "0", OK: got == 0}
}

// pick is a if the experiment is run quickly.
func pick[T any](size Size, a, b T) T {
	if size == Quick {
		return a
	}
	return b
}

func atMost(name string, got, most int64) Threshold {
	return Threshold{Name: name, Value: fmt.Sprint(got), Bar: fmt.Sprintf("<= %d", most), OK: got <= most && most > 0}
}

// sumAfter sums the numbers of a name in what is said as evidence; 0: there is none.
func sumAfter(evidence, before string) (sum int64) {
	for _, rest := range strings.Split(evidence, before+": ")[1:] {
		var n int64
		_, _ = fmt.Sscanf(rest, "%d", &n) // what is no number is none
		sum += n
	}
	return sum
}
