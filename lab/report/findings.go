package report

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/trial"
	"github.com/tenurehq/tenure/lab/verdict"
)

// comments is the template, beside the records.
const comments = "findings.tmpl"

// notRun stands for a number that was not recorded.
const notRun = "*not run*"

// Findings makes the text of docs/findings.md from the records and the comments in docs.
// missing lists the numbers that the comments name and a full record does not have.
func Findings(docs string) (text string, missing []string, err error) {
	f := &findings{docs: docs}
	if f.records, err = records(docs); err != nil {
		return "", nil, err
	}
	source, err := os.ReadFile(filepath.Join(docs, folder, comments))
	if err == nil {
		f.template, err = template.New(comments).Funcs(f.funcs()).Parse(string(source))
	}
	var b strings.Builder
	if err == nil {
		err = f.template.Execute(&b, f.totals())
	}
	if err != nil {
		return "", nil, fmt.Errorf("read the comments: %w", err)
	}
	return tidy(b.String()), f.missing, nil
}

// tidy removes trailing spaces, and all but one of consecutive empty lines.
func tidy(s string) string {
	s = regexp.MustCompile(`[ \t]+\n`).ReplaceAllString(s, "\n")
	return strings.TrimSpace(regexp.MustCompile(`\n{3,}`).ReplaceAllString(s, "\n\n")) + "\n"
}

type findings struct {
	docs     string
	records  map[string]Record
	template *template.Template
	missing  []string
}

func (f *findings) funcs() template.FuncMap {
	return template.FuncMap{
		"experiments": f.names,
		"show":        f.show,
		"about":       f.about,
		"details":     f.details,
		"value":       f.value,
		"each":        f.each,
		"cell":        f.cell,
		"source":      f.source,
		"guarantees":  f.guarantees,
		"measured":    f.measured,
		"bound":       bound,
		"available":   available,
		"budget":      budget,
		"times":       times,
		"count":       thousands,
	}
}

// names returns the names of all experiments, in order, run or not.
func (f *findings) names() (names []string) {
	for _, e := range catalogue.All() {
		names = append(names, e.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(f.records)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// about returns our comment on an experiment that was run, if there is one.
func (f *findings) about(name string) (string, error) {
	t := f.template.Lookup("about " + name)
	if _, ran := f.records[name]; t == nil || !ran {
		return "", nil
	}
	var b strings.Builder
	err := t.Execute(&b, f.totals())
	return b.String(), err
}

// find looks a number up in the record of an experiment. what names it if it is missing.
func (f *findings) find(name, what string, look func(Record) string) string {
	r, ok := f.records[name]
	if !ok {
		return notRun
	}
	if found := look(r); found != "" {
		return found
	}
	if r.Size == experiment.Full {
		f.missing = append(f.missing, fmt.Sprintf("experiment %s has no %s", r.Name, what))
	}
	return notRun
}

// value returns the value of a threshold.
func (f *findings) value(name, threshold string) string {
	return f.find(name, fmt.Sprintf("threshold %q", threshold), func(r Record) string {
		for _, t := range r.Thresholds {
			if t.Name == threshold {
				return t.Value
			}
		}
		return ""
	})
}

// each returns the value of a threshold in every trial that has it.
func (f *findings) each(name, threshold string) string {
	return f.find(name, fmt.Sprintf("threshold %q in any trial", threshold), func(r Record) string {
		var all []string
		for _, t := range r.Thresholds {
			if trial, ok := strings.CutSuffix(t.Name, ": "+threshold); ok {
				all = append(all, trial+" "+t.Value)
			}
		}
		return strings.Join(all, "; ")
	})
}

// cell returns a cell of a table whose title begins with title: in the row that begins with
// row, below the head column.
func (f *findings) cell(name, title, row, column string) string {
	return f.find(name, fmt.Sprintf("%q of %q in a table %q", column, row, title), func(r Record) string {
		for _, t := range r.Tables {
			at := slices.Index(t.Head, column)
			if !strings.HasPrefix(t.Title, title) || at < 0 {
				continue
			}
			for _, cells := range t.Rows {
				if cells[0] == row && at < len(cells) {
					return cells[at]
				}
			}
		}
		return ""
	})
}

// source says where a number is from.
func (f *findings) source(name string) string {
	link := fmt.Sprintf("[experiment %s](#experiment-%s)", name, name)
	if r, ok := f.records[name]; ok {
		return fmt.Sprintf("%s, %#q", link, r.Command)
	}
	return link + ": " + notRun
}

// measured returns a value that make bench-fleet printed into docs/fleet.md: of the line that
// begins with name, without its bar.
func (f *findings) measured(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(f.docs, "fleet.md"))
	if err != nil {
		return "", err
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		columns := regexp.MustCompile(` {2,}`).Split(line, -1)
		if strings.HasPrefix(line, name) && len(columns) >= 3 {
			return columns[1], nil
		}
	}
	return "", fmt.Errorf("docs/fleet.md has no measurement that begins %q", name)
}

// bound is the promised bound of a failover after a crash.
func bound(engine, ttl string) (string, error) {
	d, err := time.ParseDuration(ttl)
	return fmt.Sprintf("%.1f s", experiment.CrashBound(engine, d).Seconds()), err
}

const month = 30 * 24 * time.Hour

// available is the availability if each of n crashes a month costs the promised bound.
func available(engine, ttl string, n int) (string, error) {
	d, err := time.ParseDuration(ttl)
	away := float64(n) * experiment.CrashBound(engine, d).Seconds()
	return fmt.Sprintf("%.4f %%", 100*(1-away/month.Seconds())), err
}

// budget is how long each of n crashes a month may take at an availability.
func budget(percent float64, n int) string {
	return fmt.Sprintf("%.1f s", (1-percent/100)*month.Seconds()/float64(n))
}

// times returns the time without a leader after n crashes, by the promised bound.
func times(engine, ttl string, n int) (string, error) {
	d, err := time.ParseDuration(ttl)
	return fmt.Sprintf("%.0f s", float64(n)*experiment.CrashBound(engine, d).Seconds()), err
}

// thousands writes a number with separators.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// totals are sums over all records.
type totals struct {
	Experiments, Full, Trials, Terms, Kinds int
	// Loose counts those recorded before the stricter checks.
	Loose                  int
	Faults, Calls, Unknown int64
	// Fenced is the damage with the fence on, Unfenced with the fence off.
	Fenced, Unfenced trial.Damage
	Interleaved      int64
	Machines         string
}

func (f *findings) totals() totals {
	var t totals
	kinds, machines := map[string]bool{}, map[string]bool{}
	for _, r := range f.records {
		t.Experiments++
		if r.Size == experiment.Full {
			t.Full++
		}
		if !r.strict() {
			t.Loose++
		}
		machines[r.Machine] = true
		for _, x := range r.Trials {
			t.Trials++
			t.Terms += x.Terms
			t.Calls += x.Answered
			t.Unknown += x.Unknown
			for kind, n := range x.Faults {
				kinds[kind] = true
				t.Faults += int64(n)
			}
			d := &t.Fenced
			if x.Unfenced {
				d = &t.Unfenced
			}
			d.Refused, d.Applied, d.Reused = d.Refused+x.Refused, d.Applied+x.Applied, d.Reused+x.Reused
			for _, c := range x.Checks {
				if c.Check == "fence" && !x.Unfenced {
					t.Interleaved += int64(c.Violations)
				}
			}
		}
	}
	t.Kinds = len(kinds)
	t.Machines = strings.Join(slices.Sorted(maps.Keys(machines)), "; ")
	return t
}

// guarantees is a table of the verdicts of every check, over all trials that must pass it.
func (f *findings) guarantees() string {
	type sum struct {
		guarantee, what string
		passed, asked   int
		n               int64
	}
	sums := map[string]*sum{}
	for _, r := range f.records {
		for _, t := range r.Trials {
			for _, c := range t.Checks {
				if c.Want != verdict.Pass {
					continue
				}
				s := sums[c.Check]
				if s == nil {
					s = &sum{guarantee: c.Guarantee, what: c.What}
					sums[c.Check] = s
				}
				s.asked++
				s.n += c.N
				if c.Result == verdict.Pass {
					s.passed++
				}
			}
		}
	}
	rows := [][]string{}
	for _, name := range check.Names() {
		if s := sums[name]; s != nil {
			rows = append(rows, []string{s.guarantee, "`" + name + "`", fmt.Sprintf("%d of %d", s.passed, s.asked), thousands(s.n) + " " + s.what})
		} else {
			rows = append(rows, []string{"", "`" + name + "`", notRun, ""})
		}
	}
	return markdown([]string{"guarantee", "check", "trials that passed", "looked at"}, rows)
}
