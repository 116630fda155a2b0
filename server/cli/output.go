package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Output prints the results of a command in the format that -o names.
type Output struct {
	Format string
	W      io.Writer
	env    Env
	titled bool // Stream has printed the titles
}

// The formats.
const (
	FormatTable  = "table"
	FormatJSON   = "json"
	FormatNDJSON = "ndjson"
	FormatYAML   = "yaml"
	FormatName   = "name"
)

func formats() []string {
	return []string{FormatTable, FormatJSON, FormatNDJSON, FormatYAML, FormatName}
}

// Flag adds -o to a command, with its completion.
func (o *Output) Flag(cmd *cobra.Command, env Env) {
	o.env = env
	cmd.Flags().StringVarP(&o.Format, "output", "o", FormatTable, "output format: "+strings.Join(formats(), ", "))
	Shared(cmd.Flags(), "output")
	err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats(), cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic("cli: " + err.Error()) // it is registered twice
	}
}

// Open checks the format and prints to the command's standard output from now on.
func (o *Output) Open(cmd *cobra.Command) error {
	o.W = cmd.OutOrStdout()
	if !slices.Contains(formats(), o.Format) {
		return Usage("output: %q is none of %s", o.Format, strings.Join(formats(), ", "))
	}
	return nil
}

// Table reports whether a person reads the output.
func (o *Output) Table() bool { return o.Format == FormatTable }

// Table prints values of one type.
type Table[T any] struct {
	Columns []string // titles
	Row     func(T) []string
	Name    func(T) string // what -o name prints
}

// List prints a list.
func (t Table[T]) List(o *Output, rows []T) error {
	switch o.Format {
	case FormatJSON, FormatYAML:
		if rows == nil {
			rows = []T{} // an empty list is [], not null
		}
		return document(o, rows)
	case FormatTable:
		if len(rows) == 0 {
			return nil
		}
		return o.Print(t.filled(rows).render(rows, true, 0, o.Coloured()))
	}
	for _, row := range rows {
		if err := t.line(o, row); err != nil {
			return err
		}
	}
	return nil
}

// One prints one value, without a list around it.
func (t Table[T]) One(o *Output, row T) error {
	if o.Format == FormatJSON || o.Format == FormatYAML {
		return document(o, row)
	}
	return t.List(o, []T{row})
}

// Stream prints the next value of a list that does not end: a table whose titles are printed
// once, JSON as one value per line, YAML as one document each.
func (t Table[T]) Stream(o *Output, row T) error {
	switch o.Format {
	case FormatTable:
		titles := !o.titled
		o.titled = true
		return o.Print(t.render([]T{row}, titles, streamWidth, o.Coloured()))
	case FormatYAML:
		return errors.Join(o.Print("---\n"), document(o, row))
	}
	return t.line(o, row)
}

func (t Table[T]) line(o *Output, row T) error {
	if o.Format == FormatName {
		return o.Print(t.Name(row) + "\n")
	}
	data, err := json.Marshal(row)
	if err != nil {
		return err
	}
	return o.Print(string(data) + "\n")
}

func document(o *Output, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err == nil && o.Format == FormatYAML {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return err
	}
	return o.Print(strings.TrimRight(string(data), "\n") + "\n")
}

// Print prints text. Its error has ExitFailure.
func (o *Output) Print(text string) error {
	if _, err := io.WriteString(o.W, text); err != nil {
		return Exit(ExitFailure, fmt.Errorf("standard output: %w", err))
	}
	return nil
}

// colours of cells, by column and text.
var colours = map[string]string{
	"STATE led": green, "STATE vacant": yellow, "STATE unknown": yellow,
	"LEVEL ok": green, "LEVEL warning": yellow, "LEVEL broken": red, "REWOUND yes": red,
}

const (
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
	plain  = "\x1b[0m"
)

// streamWidth is the width of the columns of a stream, whose rows are not known in advance.
const streamWidth = 12

// Empty is a cell without a value. A list does not print a column of such cells.
const Empty = "-"

// filled returns the table without the columns that are empty in every row.
func (t Table[T]) filled(rows []T) Table[T] {
	var columns []string
	var keep []int
	for i, title := range t.Columns {
		if slices.ContainsFunc(rows, func(row T) bool { return t.Row(row)[i] != Empty }) {
			columns, keep = append(columns, title), append(keep, i)
		}
	}
	return Table[T]{Columns: columns, Row: func(row T) (cells []string) {
		all := t.Row(row)
		for _, i := range keep {
			cells = append(cells, all[i])
		}
		return cells
	}}
}

// render returns the rows in columns of at least a width.
func (t Table[T]) render(rows []T, titles bool, least int, coloured bool) string {
	var cells [][]string
	if titles {
		cells = append(cells, t.Columns)
	}
	for _, row := range rows {
		cells = append(cells, t.Row(row))
	}
	width := make([]int, len(t.Columns))
	for i := range width {
		width[i] = least
		for _, row := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
	}
	var all strings.Builder
	for _, row := range cells {
		var b strings.Builder
		for i, text := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(text)+2)
			if c := colours[t.Columns[i]+" "+text]; coloured && c != "" {
				text = c + text + plain
			}
			b.WriteString(text + pad)
		}
		all.WriteString(strings.TrimRight(b.String(), " ") + "\n")
	}
	return all.String()
}

// Coloured reports whether the output is a terminal and colours are wanted.
func (o *Output) Coloured() bool {
	if v, ok := o.env("NO_COLOR"); ok && v != "" {
		return false
	}
	term, _ := o.env("TERM")
	return term != "dumb" && Terminal(o.W)
}

// Terminal reports whether f is a terminal.
func Terminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
