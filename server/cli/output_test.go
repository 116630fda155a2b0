package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

type row struct {
	Name string `json:"name"`
	N    uint64 `json:"n"`
}

func sheet() Sheet[row] {
	return Sheet[row]{
		Columns: []Column[row]{
			{Head: "NAME", Cell: func(r row) string { return r.Name }, Paint: func(row) Colour { return Green }},
			{Head: "N", Cell: func(r row) string { return strings.Repeat("n", int(r.N%8)) }},
		},
		Name: func(r row) string { return r.Name },
	}
}

func none(string) (string, bool) { return "", false }

// A list, one value and a stream are printed as each format says; numbers up to 2^53 keep
// every digit, and columns line up by characters, not bytes.
func TestFormats(t *testing.T) {
	rows := []row{{"grüße", 9007199254740991}, {"b", 1}}
	for format, want := range map[string][3]string{
		Table:  {"NAME   N\ngrüße  nnnnnnn\nb      n\n", "NAME   N\ngrüße  nnnnnnn\n", "grüße         nnnnnnn\n"},
		NDJSON: {"{\"name\":\"grüße\",\"n\":9007199254740991}\n{\"name\":\"b\",\"n\":1}\n", "{\"name\":\"grüße\",\"n\":9007199254740991}\n", "{\"name\":\"grüße\",\"n\":9007199254740991}\n"},
		JSON: {
			"[\n  {\n    \"name\": \"grüße\",\n    \"n\": 9007199254740991\n  },\n  {\n    \"name\": \"b\",\n    \"n\": 1\n  }\n]\n",
			"{\n  \"name\": \"grüße\",\n  \"n\": 9007199254740991\n}\n", "{\"name\":\"grüße\",\"n\":9007199254740991}\n",
		},
		YAML: {"- n: 9007199254740991\n  name: grüße\n- \"n\": 1\n", "", ""},
		Name: {"grüße\nb\n", "grüße\n", "grüße\n"},
	} {
		o := &Output{Format: format, env: none}
		var list, one, stream bytes.Buffer
		if err := sheet().Print(&list, o, rows); err != nil {
			t.Fatal(err)
		}
		if err := sheet().One(&one, o, rows[0]); err != nil {
			t.Fatal(err)
		}
		if err := sheet().Stream(&stream, o, rows[0]); err != nil {
			t.Fatal(err)
		}
		if format == YAML {
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
	if err := sheet().Print(&empty, &Output{Format: JSON, env: none}, nil); err != nil || empty.String() != "[]\n" {
		t.Errorf("%q, %v", &empty, err)
	}
}

// Colours are for terminals, and NO_COLOR and a dumb one have none.
func TestColour(t *testing.T) {
	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminal: ", err)
	}
	defer func() { _ = tty.Close() }()
	with := func(kv string) *Output {
		return &Output{Format: Table, env: func(name string) (string, bool) {
			k, v, ok := strings.Cut(kv, "=")
			return v, ok && k == name
		}}
	}
	for kv, want := range map[string]bool{"": true, "NO_COLOR=1": false, "NO_COLOR=": true, "TERM=dumb": false} {
		if got := with(kv).coloured(tty); got != want {
			t.Errorf("%q: %v", kv, got)
		}
	}
	var buffer bytes.Buffer
	if with("").coloured(&buffer) {
		t.Error("a buffer is no terminal")
	}
	if err := sheet().Print(&buffer, with(""), []row{{"a", 1}}); err != nil || strings.Contains(buffer.String(), "\x1b") {
		t.Errorf("%q %v", &buffer, err)
	}
}

// A shared flag has two variables, others one; the verb's own is the stronger, and a flag
// stronger still.
func TestVariables(t *testing.T) {
	values := func(args []string, env map[string]string) (shared, own string) {
		root := &cobra.Command{Use: "prog"}
		verb := &cobra.Command{Use: "step-down", RunE: func(*cobra.Command, []string) error { return nil }}
		verb.Flags().StringVar(&shared, "the-store", "default", "")
		verb.Flags().StringVar(&own, "own", "default", "")
		Shared(verb.Flags(), "the-store")
		root.AddCommand(verb)
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
