// Package measure holds what an experiment measures and how that is judged: series of
// durations, thresholds and tables.
package measure

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Series is a list of measured durations.
type Series []time.Duration

// At returns the smallest measurement that is not below the fraction q of all. At(0) is the
// shortest and At(1) the longest. An empty series returns 0.
func (s Series) At(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// MS writes a duration in milliseconds.
func MS(d time.Duration) string {
	if d.Abs() < 10*time.Millisecond {
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.0f ms", float64(d)/1e6)
}

// Threshold is one value that must meet a bar.
type Threshold struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Bar   string `json:"bar"`
	OK    bool   `json:"ok"`
}

// Table is a table of results for people.
type Table struct {
	Title string     `json:"title"`
	Head  []string   `json:"head"`
	Rows  [][]string `json:"rows"`
}

// Add adds a row. Durations are written in milliseconds.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		if d, ok := c.(time.Duration); ok {
			c = MS(d)
		}
		row[i] = fmt.Sprint(c)
	}
	t.Rows = append(t.Rows, row)
}

// Summary is the result of an experiment: thresholds and tables.
type Summary struct {
	Thresholds []Threshold `json:"thresholds"`
	Tables     []Table     `json:"tables"`
}

// Passed reports whether there are thresholds and all were met.
func (s Summary) Passed() bool {
	return len(s.Thresholds) > 0 && !slices.ContainsFunc(s.Thresholds, func(t Threshold) bool { return !t.OK })
}

// Table returns the table with a title and adds it if it is missing. The pointer is valid
// until the next call.
func (s *Summary) Table(title string, head ...string) *Table {
	i := slices.IndexFunc(s.Tables, func(t Table) bool { return t.Title == title })
	if i < 0 {
		i = len(s.Tables)
		s.Tables = append(s.Tables, Table{Title: title, Head: head})
	}
	return &s.Tables[i]
}

// Print writes thresholds, then tables.
func (s Summary) Print(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, t := range s.Thresholds {
		word := "ok"
		if !t.OK {
			word = "missed"
		}
		_, _ = fmt.Fprintf(out, "  %s\t%s\t%s\t%s\n", word, t.Name, t.Value, t.Bar) // Flush returns the error
	}
	for _, t := range s.Tables {
		if len(t.Rows) == 0 {
			continue
		}
		_, _ = fmt.Fprintf(out, "\n  %s\n", t.Title)
		for _, row := range append([][]string{t.Head}, t.Rows...) {
			_, _ = fmt.Fprintf(out, "    %s\n", strings.Join(row, "\t"))
		}
	}
	return out.Flush()
}

// Judge adds the thresholds and rows of one trial to a summary.
type Judge struct {
	*Summary
	Trial string
}

// Bar adds a threshold, named after the trial.
func (j Judge) Bar(name, value, bar string, ok bool) {
	if j.Trial != "" {
		name = j.Trial + ": " + name
	}
	j.Thresholds = append(j.Thresholds, Threshold{name, value, bar, ok})
}

// Count requires that all of want happened. None at all does not pass.
func (j Judge) Count(name string, got, want int) {
	j.Bar(name, fmt.Sprintf("%d of %d", got, want), fmt.Sprintf("%d of %d", want, want), got == want && want > 0)
}

// None requires 0.
func (j Judge) None(name string, got int64) { j.Bar(name, fmt.Sprint(got), "0", got == 0) }

// Some requires more than 0.
func (j Judge) Some(name string, got int64) { j.Bar(name, fmt.Sprint(got), "> 0", got > 0) }

// AtLeast requires want or more.
func (j Judge) AtLeast(name string, got, want int) {
	j.Bar(name, fmt.Sprint(got), fmt.Sprintf(">= %d", want), got >= want)
}

// AtMost requires most or less. A limit of 0 does not pass.
func (j Judge) AtMost(name string, got, most int64) {
	j.Bar(name, fmt.Sprint(got), fmt.Sprintf("<= %d", most), got <= most && most > 0)
}

// Below requires n measurements that are all below a limit.
func (j Judge) Below(name string, s Series, limit time.Duration, n int) {
	j.Bar(name, fmt.Sprintf("max %s of %d", MS(s.At(1)), len(s)), fmt.Sprintf("< %s, %d rounds", MS(limit), n), len(s) == n && n > 0 && s.At(1) < limit)
}

// Above0 requires n measurements that are all above 0.
func (j Judge) Above0(name, bar string, s Series, n int) {
	j.Bar(name, fmt.Sprintf("least %s of %d", MS(s.At(0)), len(s)), bar, s.At(0) > 0 && len(s) == n)
}

// Row adds a row to a table; its first cell is the trial.
func (j Judge) Row(title string, head []string, cells ...any) {
	j.Table(title, append([]string{"trial"}, head...)...).Add(append([]any{j.Trial}, cells...)...)
}

// Series adds a row about a series: how many, median, 95th percentile, longest, and more.
func (j Judge) Series(title, row string, s Series, more ...any) {
	cells := []any{row, len(s), "", "", ""}
	if len(s) > 0 {
		cells = []any{row, len(s), s.At(0.5), s.At(0.95), s.At(1)}
	}
	j.Table(title, "trial", "n", "p50", "p95", "max").Add(append(cells, more...)...)
}
