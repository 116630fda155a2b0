package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Output is how a verb prints what it was asked for: a table for people, or one of the
// forms for programs.
type Output struct {
	Format string
	env    func(string) (string, bool)
}

// The formats.
const (
	Table  = "table"
	JSON   = "json"
	NDJSON = "ndjson"
	YAML   = "yaml"
	Name   = "name"
)

func formats() []string { return []string{Table, JSON, NDJSON, YAML, Name} }

// Flag adds -o to a verb, with its completion.
func (o *Output) Flag(cmd *cobra.Command, env func(string) (string, bool)) {
	o.env = env
	cmd.Flags().StringVarP(&o.Format, "output", "o", Table, "how to print: "+strings.Join(formats(), ", "))
	Shared(cmd.Flags(), "output")
	err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats(), cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic("cli: " + err.Error()) // it is registered twice
	}
}

// Validate refuses a format that does not exist.
func (o *Output) Validate() error {
	if !slices.Contains(formats(), o.Format) {
		return fmt.Errorf("output: %q is none of %s", o.Format, strings.Join(formats(), ", "))
	}
	return nil
}

// People: a table is printed, and what is not in it may be said beside it.
func (o *Output) People() bool { return o.Format == Table }

// Colour of a cell.
type Colour string

// The colours.
const (
	Plain  Colour = ""
	Green  Colour = "32"
	Yellow Colour = "33"
	Red    Colour = "31"
)

// Column of a table.
type Column[T any] struct {
	Head  string
	Cell  func(T) string
	Paint func(T) Colour // optional
}

// Sheet says how values of a kind are printed.
type Sheet[T any] struct {
	Columns []Column[T]
	Name    func(T) string
}

// Print prints a list.
func (s Sheet[T]) Print(w io.Writer, o *Output, rows []T) error {
	if rows == nil {
		rows = []T{} // a list without entries is [], not null
	}
	switch o.Format {
	case JSON, YAML:
		return document(w, o.Format, rows)
	case Table:
		return s.table(w, o, rows, true)
	}
	for _, row := range rows {
		if err := s.line(w, o, row); err != nil {
			return err
		}
	}
	return nil
}

// One prints one value that was asked for by name: no list around it.
func (s Sheet[T]) One(w io.Writer, o *Output, row T) error {
	switch o.Format {
	case JSON, YAML:
		return document(w, o.Format, row)
	case Table:
		return s.table(w, o, []T{row}, true)
	}
	return s.line(w, o, row)
}

// Stream prints the values of a list that has no end as they come; a table without its
// head, JSON as one value a line, YAML as one document each.
func (s Sheet[T]) Stream(w io.Writer, o *Output, row T) error {
	switch o.Format {
	case Table:
		return s.table(w, o, []T{row}, false)
	case YAML:
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
		return document(w, YAML, row)
	}
	return s.line(w, o, row)
}

func (s Sheet[T]) line(w io.Writer, o *Output, row T) error {
	if o.Format == Name {
		_, err := fmt.Fprintln(w, s.Name(row))
		return err
	}
	return json.NewEncoder(w).Encode(row)
}

func document(w io.Writer, format string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err == nil && format == YAML {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, strings.TrimRight(string(data), "\n"))
	return err
}

// streamWidth is that of the columns of a stream, whose rows are not known beforehand.
const streamWidth = 12

func (s Sheet[T]) table(w io.Writer, o *Output, rows []T, head bool) error {
	if len(rows) == 0 {
		return nil
	}
	width := make([]int, len(s.Columns))
	for i, c := range s.Columns {
		if width[i] = streamWidth; head {
			width[i] = len(c.Head)
		}
		for _, row := range rows {
			width[i] = max(width[i], utf8.RuneCountInString(c.Cell(row)))
		}
	}
	painted := o.coloured(w)
	var b strings.Builder
	put := func(i int, text string, c Colour) {
		pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(text)+2)
		if painted && c != Plain {
			text = "\x1b[" + string(c) + "m" + text + "\x1b[0m"
		}
		b.WriteString(text)
		if i < len(s.Columns)-1 {
			b.WriteString(pad)
		}
	}
	if head {
		for i, c := range s.Columns {
			put(i, c.Head, Plain)
		}
		b.WriteByte('\n')
	}
	for _, row := range rows {
		for i, c := range s.Columns {
			colour := Plain
			if c.Paint != nil {
				colour = c.Paint(row)
			}
			put(i, c.Cell(row), colour)
		}
		b.WriteByte('\n')
	}
	for line := range strings.Lines(b.String()) {
		if _, err := io.WriteString(w, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// coloured: a person looks, and has not asked for none.
func (o *Output) coloured(w io.Writer) bool {
	if v, ok := o.env("NO_COLOR"); ok && v != "" {
		return false
	}
	term, _ := o.env("TERM")
	return term != "dumb" && Terminal(w)
}

// Terminal reports whether a person sits at the other end of a file.
func Terminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && file.Name() != os.DevNull
}
