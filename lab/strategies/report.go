package strategies

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/lab/measure"
	"github.com/tenurehq/tenure/lab/plot"
)

// FlagTable is how the four failures of a flag were seen.
func FlagTable(seen []string) measure.Table {
	t := measure.Table{Title: "the four failures of a flag in a database", Head: []string{"failure", "seen"}}
	for _, s := range seen {
		name, what, _ := strings.Cut(s, ": ")
		t.Add(name, what)
	}
	return t
}

// markdown writes a table for a page.
func markdown(t measure.Table) string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.Head)
	line(slices.Repeat([]string{"---"}, len(t.Head)))
	for _, r := range t.Rows {
		line(r)
	}
	return b.String()
}

// The page, and the marks around what Report writes into it.
const (
	page     = "strategies.md"
	markOpen = "<!-- measured: %s -->\n"
	markEnd  = "<!-- end -->"
)

// insert replaces a marked section of a page.
func insert(text, name, section string) (string, error) {
	open := fmt.Sprintf(markOpen, name)
	before, rest, found := strings.Cut(text, open)
	_, after, ended := strings.Cut(rest, markEnd)
	if !found || !ended {
		return "", fmt.Errorf("%s has no section %q: it begins with %q and ends with %q", page, name, strings.TrimSpace(open), markEnd)
	}
	return before + open + section + markEnd + after, nil
}

// Report writes what is recorded in a folder into docs/strategies.md, and a figure for each fault
// into docs/lab.
func Report(results, docs string) error {
	all, err := Results(results)
	if err != nil {
		return err
	}
	if len(all.Rounds) == 0 {
		return fmt.Errorf("no results in %s: run lab strategies first", results)
	}
	path := filepath.Join(docs, page)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text := string(data)
	first := all.Rounds[0]
	summary := Summarize(all.Rounds)
	table := fmt.Sprintf("`lab strategies --seed %d --ttl %v`, %d rounds in all, TTL %v for every strategy.\n\n%s", first.Seed, first.TTL, len(all.Rounds), first.TTL, markdown(summary.Tables[0]))
	var figures strings.Builder
	for _, f := range faults() {
		name, title, err := figure(all.Rounds, f, filepath.Join(docs, "lab"))
		if errors.Is(err, plot.ErrNothing) {
			continue
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(&figures, "![%s](lab/%s.svg)\n\n", title, name)
	}
	for _, s := range []struct{ name, text string }{
		{"cells", table},
		{"figures", figures.String()},
		{"elections", markdown(Elections(all.Elections))},
		{"flag", markdown(FlagTable(all.Flag))},
	} {
		if text, err = insert(text, s.name, s.text); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// figure draws what a fault did to each strategy, with the smallest number of candidates.
func figure(rounds []Round, f fault, dir string) (name, title string, err error) {
	d := plot.Beside{Title: "Failover when " + f.what, Unit: "from the fault to the next leader"}
	for _, s := range all() {
		row := plot.Row{Name: s.title}
		nodes := 0
		for _, r := range rounds {
			if r.Strategy != s.name || r.Fault != f.name || nodes > 0 && r.Nodes != nodes {
				continue
			}
			nodes = r.Nodes
			row.Bar = max(row.Bar, r.Both)
			if r.Failover > 0 {
				row.Samples = append(row.Samples, r.Failover)
			} else {
				row.None++
			}
			row.Bad += r.Accepted
			d.Note = fmt.Sprintf("TTL %v, %d candidates, seed %d. The bar is the longest time for which two believed.", r.TTL, r.Nodes, r.Seed)
		}
		if len(row.Samples)+row.None > 0 {
			d.Rows = append(d.Rows, row)
		}
	}
	fig, err := d.Figure()
	if err != nil {
		return "", "", err
	}
	name = "strategies-" + f.name
	return name, fig.Title(), fig.Save(dir, name)
}
