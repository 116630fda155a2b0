package main

import (
	"flag"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

// No verb and no flag is lost by accident.
func TestInventory(t *testing.T) {
	var got []string
	for _, v := range verbs() {
		got = append(got, v.name)
		s := settings{verb: v.name}
		s.define(strings.Fields(v.flags), io.Discard).VisitAll(func(f *flag.Flag) { got = append(got, strings.TrimSpace(v.name+" --"+f.Name+" "+f.DefValue)) })
	}
	want, err := os.ReadFile("testdata/inventory.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(want)) {
		if line = strings.TrimSpace(line); !slices.Contains(got, line) {
			t.Errorf("lost: %s", line)
		}
	}
	if t.Failed() {
		t.Logf("there are:\n%s", strings.Join(got, "\n"))
	}
}
