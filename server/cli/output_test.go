package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

type row struct {
	Name string `json:"name"`
	N    uint64 `json:"n"`
}

func table() Table[row] {
	return Table[row]{
		Columns: []string{"NAME", "N"},
		Row:     func(r row) []string { return []string{r.Name, strings.Repeat("n", int(r.N%8))} },
		Name:    func(r row) string { return r.Name },
	}
}

func none(string) (string, bool) { return "", false }

// A list, one value and a stream are printed as each format says; numbers up to 2^53 keep
// every digit, and columns line up by characters, not bytes.
func TestFormats(t *testing.T) {
	rows := []row{{"grüße", 9007199254740991}, {"b", 1}}
	for format, want := range map[string][3]string{
		FormatTable:  {"NAME   N\ngrüße  nnnnnnn\nb      n\n", "NAME   N\ngrüße  nnnnnnn\n", "NAME          N\ngrüße         nnnnnnn\n"},
		FormatNDJSON: {"{\"name\":\"grüße\",\"n\":9007199254740991}\n{\"name\":\"b\",\"n\":1}\n", "{\"name\":\"grüße\",\"n\":9007199254740991}\n", "{\"name\":\"grüße\",\"n\":9007199254740991}\n"},
		FormatJSON: {
			"[\n  {\n    \"name\": \"grüße\",\n    \"n\": 9007199254740991\n  },\n  {\n    \"name\": \"b\",\n    \"n\": 1\n  }\n]\n",
			"{\n  \"name\": \"grüße\",\n  \"n\": 9007199254740991\n}\n", "{\"name\":\"grüße\",\"n\":9007199254740991}\n",
		},
		FormatYAML: {"- n: 9007199254740991\n  name: grüße\n- \"n\": 1\n", "", ""},
		FormatName: {"grüße\nb\n", "grüße\n", "grüße\n"},
	} {
		var list, one, stream bytes.Buffer
		if err := table().List(&Output{Format: format, W: &list, env: none}, rows); err != nil {
			t.Fatal(err)
		}
		if err := table().One(&Output{Format: format, W: &one, env: none}, rows[0]); err != nil {
			t.Fatal(err)
		}
		if err := table().Stream(&Output{Format: format, W: &stream, env: none}, rows[0]); err != nil {
			t.Fatal(err)
		}
		if format == FormatYAML {
			for _, text := range []string{list.String(), one.String(), stream.String()} {
				if !strings.Contains(text, "9007199254740991") || !strings.Contains(text, "grüße") {
					t.Errorf("yaml: %q", text)
				}
			}
			if !strings.HasPrefix(stream.String(), "---\n") {
				t.Errorf("yaml: %q", &stream)
			}
			continue
		}
		for i, got := range []string{list.String(), one.String(), stream.String()} {
			if got != want[i] {
				t.Errorf("%s: %q, not %q", format, got, want[i])
			}
		}
	}
	var empty bytes.Buffer
	if err := table().List(&Output{Format: FormatJSON, W: &empty, env: none}, nil); err != nil || empty.String() != "[]\n" {
		t.Errorf("%q, %v", &empty, err)
	}
}

// A list does not print a column that is empty in every row. A stream prints its titles once.
func TestColumns(t *testing.T) {
	cells := Table[[]string]{Columns: []string{"A", "B", "C"}, Row: func(r []string) []string { return r }}
	var list, stream bytes.Buffer
	if err := cells.List(&Output{Format: FormatTable, W: &list, env: none}, [][]string{{"1", Empty, "3"}, {Empty, Empty, "4"}}); err != nil || list.String() != "A  C\n1  3\n-  4\n" {
		t.Errorf("%q, %v", &list, err)
	}
	o := &Output{Format: FormatTable, W: &stream, env: none}
	for range 2 {
		if err := cells.Stream(o, []string{"1", Empty, "3"}); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(stream.String(), "A") != 1 || strings.Count(stream.String(), "\n") != 3 {
		t.Errorf("%q", &stream)
	}
}

// If standard output cannot be written, every format fails with exit code 1.
func TestWriteError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full: ", err)
	}
	defer func() { _ = full.Close() }()
	for _, format := range formats() {
		o := &Output{Format: format, W: full, env: none}
		for name, err := range map[string]error{"list": table().List(o, []row{{"a", 1}}), "one": table().One(o, row{"a", 1}), "stream": table().Stream(o, row{"a", 1})} {
			var exit *ExitError
			if !errors.As(err, &exit) || exit.Code != ExitFailure {
				t.Errorf("%s %s: %v", format, name, err)
			}
		}
	}
}

// /dev/null is not a terminal: a command that must ask says that --yes answers.
func TestConfirmWithoutTerminal(t *testing.T) {
	stdin := filepath.Join(t.TempDir(), "stdin") // it has another name, as a redirected standard input has
	if err := os.Symlink(os.DevNull, stdin); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(stdin)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	for name, in := range map[string]io.Reader{"null": null, "pipe": strings.NewReader("y\n")} {
		cmd := &cobra.Command{}
		var said bytes.Buffer
		cmd.SetIn(in)
		cmd.SetErr(&said)
		err := Confirm(cmd, false)
		var exit *ExitError
		if !errors.As(err, &exit) || exit.Code != ExitUsage || !strings.Contains(err.Error(), "--yes") || said.Len() > 0 {
			t.Errorf("%s: %v %s", name, err, &said)
		}
	}
}

// Only terminals get colours, unless NO_COLOR is set or TERM is dumb.
func TestColour(t *testing.T) {
	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminal: ", err)
	}
	defer func() { _ = tty.Close() }()
	with := func(w io.Writer, kv string) *Output {
		return &Output{Format: FormatTable, W: w, env: func(name string) (string, bool) {
			k, v, ok := strings.Cut(kv, "=")
			return v, ok && k == name
		}}
	}
	for kv, want := range map[string]bool{"": true, "NO_COLOR=1": false, "NO_COLOR=": true, "TERM=dumb": false} {
		if got := with(tty, kv).Coloured(); got != want {
			t.Errorf("%q: %v", kv, got)
		}
	}
	var buffer bytes.Buffer
	states := Table[string]{Columns: []string{"STATE", "NODE"}, Row: func(s string) []string { return []string{s, "led"} }}
	if err := states.List(with(&buffer, ""), []string{"led"}); err != nil || buffer.String() != "STATE  NODE\nled    led\n" {
		t.Errorf("%q %v", &buffer, err)
	}
	if got := states.render([]string{"led"}, true, 0, true); got != "STATE  NODE\n"+green+"led"+plain+"    led\n" {
		t.Errorf("%q", got)
	}
}

// A shared flag has two variables, others one. The command's own variable has precedence
// over the shared one, and a flag over both.
func TestVariables(t *testing.T) {
	values := func(args []string, env map[string]string) (shared, own string) {
		root := &cobra.Command{Use: "prog"}
		command := &cobra.Command{Use: "step-down", RunE: func(*cobra.Command, []string) error { return nil }}
		command.Flags().StringVar(&shared, "the-store", "default", "")
		command.Flags().StringVar(&own, "own", "default", "")
		Shared(command.Flags(), "the-store")
		root.AddCommand(command)
		FromEnvironment(root, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
		root.SetArgs(append([]string{"step-down"}, args...))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		return shared, own
	}
	all := map[string]string{"PROG_THE_STORE": "a", "PROG_STEP_DOWN_THE_STORE": "b", "PROG_OWN": "c"}
	if s, o := values(nil, all); s != "b" || o != "default" {
		t.Errorf("%q, %q", s, o)
	}
	if s, _ := values(nil, map[string]string{"PROG_THE_STORE": "a"}); s != "a" {
		t.Errorf("%q", s)
	}
	if s, o := values([]string{"--the-store=x"}, map[string]string{"PROG_THE_STORE": "a", "PROG_STEP_DOWN_OWN": "d"}); s != "x" || o != "d" {
		t.Errorf("%q, %q", s, o)
	}
}
