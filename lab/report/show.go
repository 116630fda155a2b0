package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/experiment"
)

// rowsShown is how many rows of a table are in the text; the record has more.
const rowsShown = 14

// show returns the head of an experiment: question, expectation, result, and how it was run.
func (f *findings) show(name string) string {
	var b strings.Builder
	r, ok := f.records[name]
	if !ok {
		if found, err := catalogue.Find(name); err == nil {
			r.Title = found[0].Title
		}
	}
	fmt.Fprintf(&b, "<a id=\"experiment-%s\"></a>\n### Experiment %s: %s\n\n", name, name, cmp.Or(r.Title, "unknown"))
	if !ok {
		return b.String() + notRun + "\n"
	}
	missed := []string{}
	for _, t := range r.Thresholds {
		if !t.OK {
			missed = append(missed, fmt.Sprintf("%s: %s, wanted %s", t.Name, t.Value, t.Bar))
		}
	}
	result := fmt.Sprintf("%d of %d bars were met.", len(r.Thresholds)-len(missed), len(r.Thresholds))
	if len(missed) > 0 {
		result += " **Missed:** " + strings.Join(missed, "; ") + "."
	}
	if r.Size != experiment.Full {
		result += " This is the quick form, with few rounds: the full one was not run."
	}
	revision := ""
	if r.Revision != "" {
		revision = ", revision " + r.Revision
	}
	if !r.strict() {
		revision += ", " + experiment.BeforeStricterChecks
	}
	fmt.Fprintf(&b, "- **Question.** %s\n- **Expected.** %s\n- **Result.** %s\n", r.Question, r.Expectation, result)
	fmt.Fprintf(&b, "- **Run.** `%s`, %s, %.0f s, %s, %s%s; [record](%s/%s.json)\n", r.Command, r.Size, r.Seconds, r.Date, r.Machine, revision, folder, name)
	return b.String()
}

// details returns the figures of an experiment, and its tables, folded.
func (f *findings) details(name string) string {
	r, ok := f.records[name]
	if !ok {
		return ""
	}
	var b strings.Builder
	var others []string
	for _, p := range r.Pictures {
		file := folder + "/" + p.Name + ".svg"
		if p.PNG {
			fmt.Fprintf(&b, "![%s](%s)\n\n", p.Title, file)
		} else {
			others = append(others, fmt.Sprintf("[%s](%s)", p.Trial, file))
		}
	}
	if len(others) > 0 {
		fmt.Fprintf(&b, "Who led in the other trials: %s.\n\n", strings.Join(others, ", "))
	}
	var bars [][]string
	for _, t := range r.Thresholds {
		word := "met"
		if !t.OK {
			word = "**missed**"
		}
		bars = append(bars, []string{t.Name, t.Value, t.Bar, word})
	}
	fold := func(title, text string) {
		fmt.Fprintf(&b, "<details><summary>%s</summary>\n\n%s\n</details>\n\n", title, text)
	}
	fold("Bars", markdown([]string{"threshold", "value", "bar", ""}, bars))
	fold("Trials", configurations(r)+bounds(r))
	for _, t := range r.Tables {
		fold(strings.ToUpper(t.Title[:1])+t.Title[1:], markdown(t.Head, shorten(t.Rows, rowsShown, "and %d more in the record")))
	}
	return b.String()
}

// configurations is a table of the trials.
func configurations(r Record) string {
	var rows [][]string
	for _, t := range r.Trials {
		with := []string{}
		if t.Workers > 0 {
			with = append(with, fmt.Sprintf("%d workers", t.Workers))
		}
		if t.Unfenced {
			with = append(with, "fencing off")
		}
		if len(t.Plant) > 0 {
			with = append(with, "planted: "+strings.Join(t.Plant, ", "))
		}
		var faults []string
		for _, name := range slices.Sorted(maps.Keys(t.Faults)) {
			faults = append(faults, fmt.Sprintf("%d %s", t.Faults[name], name))
		}
		if more := len(faults) - 4; more > 0 {
			faults = append(faults[:4], fmt.Sprintf("and %d kinds more", more))
		}
		rows = append(rows, []string{
			t.Name, t.Engine, t.TTL.String(), fmt.Sprint(t.Nodes), fmt.Sprintf("%.0f/s", t.Rate), fmt.Sprint(t.Rounds), strings.Join(with, "; "),
			strings.Join(faults, ", "), thousands(t.Answered),
		})
	}
	return markdown([]string{"trial", "engine", "TTL", "nodes", "calls", "rounds", "with", "faults", "calls answered"}, rows)
}

// bounds is a table of the longest time seen beside each bound.
func bounds(r Record) string {
	var rows [][]string
	for _, t := range r.Trials {
		for _, c := range t.Checks {
			bound, longest, ok := strings.Cut(strings.TrimPrefix(c.Note, "bound "), ", longest ")
			if ok && c.Want != "" {
				rows = append(rows, []string{t.Name, c.Guarantee, "`" + c.Check + "`", bound, longest})
			}
		}
	}
	if len(rows) == 0 {
		return ""
	}
	return "\nThe longest time that was seen beside each bound:\n\n" + markdown([]string{"trial", "guarantee", "check", "bound", "longest"}, rows)
}

// markdown writes a table. Short rows are filled up.
func markdown(head []string, rows [][]string) string {
	wide := len(head)
	for _, r := range rows {
		wide = max(wide, len(r))
	}
	var b strings.Builder
	line := func(cells []string) {
		for i := range wide {
			cell := ""
			if i < len(cells) {
				cell = strings.NewReplacer("|", `\|`, "\n", " ").Replace(cells[i])
			}
			b.WriteString("| " + cell + " ")
		}
		b.WriteString("|\n")
	}
	line(head)
	line(slices.Repeat([]string{"---"}, wide))
	for _, r := range rows {
		line(r)
	}
	return b.String()
}
