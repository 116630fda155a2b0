package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/experiment"
)

// rowsShown is how many rows of a table are in the text; the record has more.
const rowsShown = 14

// show is one experiment: what was asked and expected, how it was run, what came out.
func (f *findings) show(name string) string {
	var b strings.Builder
	r, ok := f.records[name]
	if !ok {
		title := ""
		if found, err := catalogue.Find(name); err == nil {
			title = ": " + found[0].Title
		}
		fmt.Fprintf(&b, "<a id=\"experiment-%s\"></a>\n### Experiment %s%s\n\n%s\n", name, name, title, notRun)
		return b.String()
	}
	fmt.Fprintf(&b, "<a id=\"experiment-%s\"></a>\n### Experiment %s: %s\n\n", name, name, r.Title)
	fmt.Fprintf(&b, "- **Question.** %s\n- **Expected.** %s\n", r.Question, r.Expectation)
	revision := ""
	if r.Revision != "" {
		revision = ", revision " + r.Revision
	}
	if !r.strict() {
		revision += ", " + experiment.BeforeStricterChecks
	}
	fmt.Fprintf(&b, "- **Run.** `%s`, %s, %.0f s, %s, %s%s; [record](%s/%s.json)\n\n", r.Command, r.Size, r.Seconds, r.Date, r.Machine, revision, folder, name)
	if r.Size != experiment.Full {
		b.WriteString("These are of the quick form, with few rounds: the full one was not run.\n\n")
	}
	b.WriteString(configurations(r) + "\n")
	var bars [][]string
	for _, t := range r.Thresholds {
		word := "ok"
		if !t.OK {
			word = "**short**"
		}
		bars = append(bars, []string{t.Name, t.Value, t.Bar, word})
	}
	b.WriteString(markdown([]string{"threshold", "value", "bar", ""}, bars) + "\n")
	b.WriteString(bounds(r))
	for _, t := range r.Tables {
		fmt.Fprintf(&b, "%s:\n\n%s\n", strings.ToUpper(t.Title[:1])+t.Title[1:], markdown(t.Head, shorten(t.Rows, rowsShown, "and %d more in the record")))
	}
	b.WriteString(pictures(r))
	return b.String()
}

// configurations is what each trial was run with.
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

// bounds is the longest that was seen beside each bound that a trial was held to.
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
	return "The longest that was seen beside the bound:\n\n" + markdown([]string{"trial", "guarantee", "check", "bound", "longest"}, rows) + "\n"
}

func pictures(r Record) string {
	var b strings.Builder
	var others []string
	for _, p := range r.Pictures {
		file := folder + "/" + p.Name + ".svg"
		if !p.PNG {
			others = append(others, fmt.Sprintf("[%s](%s)", p.Trial, file))
			continue
		}
		fmt.Fprintf(&b, "![%s](%s)\n\n", p.Title, file)
	}
	if len(others) > 0 {
		fmt.Fprintf(&b, "Who led in the other trials: %s.\n", strings.Join(others, ", "))
	}
	return b.String()
}

// markdown is a table. Short rows are filled up.
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
