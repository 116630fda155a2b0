package main

import (
	_ "embed"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
)

// report is docs/compare.json and the data of the page.
type report struct {
	Made     string            `json:"made"`
	When     string            `json:"when"`
	Machine  string            `json:"machine"`
	Versions map[string]string `json:"versions"`
	Tables   []reportTable     `json:"tables"`
}

type reportTable struct {
	Title   string      `json:"title"`
	Intro   string      `json:"intro"`
	Columns []string    `json:"columns"`
	Rows    []reportRow `json:"rows"`
}

type reportRow struct {
	Test  string            `json:"test"`
	What  string            `json:"what"`
	When  string            `json:"when,omitempty"`
	Cells map[string]string `json:"cells"`
}

const notRun = "not run"

func newReport(notes map[string]note) report {
	r := report{
		Made:     "make compare",
		Machine:  fmt.Sprintf("%s/%s, %d cores", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()),
		Versions: map[string]string{"Go": strings.TrimPrefix(runtime.Version(), "go")},
	}
	for _, t := range tables() {
		out := reportTable{Title: t.title, Intro: t.intro, Columns: t.columns}
		for _, row := range t.rows {
			n := notes[row.test]
			cells := map[string]string{}
			for _, c := range t.columns {
				cells[c] = notRun
				if said := n.Cells[c]; said != "" {
					cells[c] = said
				}
			}
			maps.Copy(r.Versions, n.Versions)
			r.When = max(r.When, n.When)
			out.Rows = append(out.Rows, reportRow{Test: row.test, What: row.what, When: n.When, Cells: cells})
		}
		r.Tables = append(r.Tables, out)
	}
	return r
}

//go:embed page.tmpl
var pageText string

// page writes docs/comparison.md.
func (r report) page(w io.Writer) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"rule": func(columns []string) string { return strings.Repeat("---|", len(columns)+2) },
	}).Parse(pageText)
	if err != nil {
		return err
	}
	return t.Execute(w, r)
}

// Used lists all versions in one line.
func (r report) Used() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		all = append(all, name+" "+r.Versions[name])
	}
	return strings.Join(all, ", ")
}

// print prints the report to a terminal.
func (r report) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, t := range r.Tables {
		_, _ = fmt.Fprintf(tw, "\n%s\n", t.Title)
		for _, row := range t.Rows {
			_, _ = fmt.Fprintf(tw, "\n%s: %s\n", row.Test, row.What)
			for _, c := range t.Columns {
				_, _ = fmt.Fprintf(tw, "  %s\t%s\n", c, row.Cells[c])
			}
		}
	}
	return tw.Flush()
}
