package store

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tenurehq/tenure"
)

// Names fit into a DNS label, a path and a key of every engine, and look the
// same to every reader.
func TestValidName(t *testing.T) {
	for _, tt := range []struct {
		name string
		want bool
	}{
		{"a", true},
		{"7", true},
		{"billing", true},
		{"shard-17", true},
		{"node_1.eu-west.example", true},
		{"a-", true},
		{"a.", true},
		{"a..b", true},
		{strings.Repeat("a", 63), true},

		{"", false},
		{strings.Repeat("a", 64), false},
		{"-a", false},
		{"_a", false},
		{".a", false},
		{".", false},
		{"..", false},
		{"Billing", false},
		{"a b", false},
		{"a/b", false},
		{"a*", false},
		{"*", false},
		{"a\x00", false},
		{"a\n", false},
		{"grüße", false},
		{"a\u0301", false},
	} {
		if got := ValidName(tt.name); got != tt.want {
			t.Errorf("ValidName(%q) = %v", tt.name, got)
		}
		if err := CheckGroup(tt.name); (err == nil) != tt.want || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("CheckGroup(%q): %v", tt.name, err)
		}
	}
}

// A candidate is checked in every part that engines store, at the bounds.
func TestCheckCandidate(t *testing.T) {
	metadata := func(n int) map[string]string { return map[string]string{"k": strings.Repeat("v", n-1)} }
	for _, tt := range []struct {
		name string
		c    tenure.Candidate
		want string // in the error; "": none
	}{
		{"everything", tenure.Candidate{ID: "a", Address: strings.Repeat("x", 512), Metadata: metadata(MaxMetadata), Priority: -1}, ""},
		{"no id", tenure.Candidate{}, "candidate id"},
		{"bad id", tenure.Candidate{ID: "A"}, `candidate id is "A"`},
		{"long address", tenure.Candidate{ID: "a", Address: strings.Repeat("x", 513)}, "candidate address"},
		{"much metadata", tenure.Candidate{ID: "a", Metadata: metadata(MaxMetadata + 1)}, "candidate metadata"},
	} {
		err := CheckCandidate(tt.c)
		switch {
		case tt.want == "" && err != nil, tt.want != "" && !errors.Is(err, ErrInvalid), tt.want != "" && !strings.Contains(err.Error(), tt.want):
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// A scope covers the names that it lists, and what begins as it says.
func TestScopeCovers(t *testing.T) {
	for _, tt := range []struct {
		scope Scope
		group string
		want  bool
	}{
		{Scope{"billing"}, "billing", true},
		{Scope{"billing"}, "billing-2", false},
		{Scope{"billing"}, "bill", false},
		{Scope{"shard-*"}, "shard-17", true},
		{Scope{"shard-*"}, "shard-", true},
		{Scope{"shard-*"}, "shard", false},
		{Scope{"shard-*"}, "billing", false},
		{Scope{"*"}, "billing", true},
		{Scope{"billing", "shard-*"}, "shard-1", true},
		{Scope{"billing", "shard-*"}, "mail", false},
		{Scope{}, "billing", false},
		{nil, "billing", false},
	} {
		if got := tt.scope.Covers(tt.group); got != tt.want {
			t.Errorf("%q covers %q: %v", tt.scope, tt.group, got)
		}
	}
}

// A scope is refused if it covers nothing, or if it says something that no group
// can be called.
func TestScopeValidate(t *testing.T) {
	many := make(Scope, MaxScope)
	for i := range many {
		many[i] = "a"
	}
	for _, tt := range []struct {
		name  string
		scope Scope
		want  bool
	}{
		{"a name", Scope{"billing"}, true},
		{"a beginning", Scope{"shard-*"}, true},
		{"everything", Scope{"*"}, true},
		{"several", Scope{"billing", "shard-*", "*"}, true},
		{"as many as may be", many, true},
		{"a longest beginning", Scope{strings.Repeat("a", 63) + "*"}, true},

		{"nothing", nil, false},
		{"empty", Scope{}, false},
		{"too many", append(slices.Clone(many), "b"), false},
		{"an empty name", Scope{""}, false},
		{"two stars", Scope{"**"}, false},
		{"a star inside", Scope{"a*b"}, false},
		{"a star in front", Scope{"*a"}, false},
		{"an ending", Scope{"-*"}, false},
		{"upper case", Scope{"Shard-*"}, false},
		{"one bad among good", Scope{"billing", "Mail"}, false},
		{"too long", Scope{strings.Repeat("a", 64) + "*"}, false},
	} {
		if err := tt.scope.Validate(); (err == nil) != tt.want || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// Two scopes overlap if and only if some name is covered by both. The names here
// are all that are up to four long over a small alphabet, the patterns up to
// three: wherever two patterns meet, they meet in one of those names.
func TestScopeOverlaps(t *testing.T) {
	const letters = "ab-"
	var names, patterns []string
	last := []string{""}
	for length := 1; length <= 4; length++ {
		var longer []string
		for _, begin := range last {
			for _, c := range letters {
				longer = append(longer, begin+string(c))
			}
		}
		last = longer
		names = append(names, longer...)
		if length <= 3 {
			patterns = append(patterns, longer...)
		}
	}
	for _, p := range slices.Clone(patterns) {
		patterns = append(patterns, p+"*")
	}
	patterns = append(patterns, "*")

	r := rand.New(rand.NewPCG(1, 1))
	scope := func() Scope {
		s := make(Scope, r.IntN(4))
		for i := range s {
			s[i] = patterns[r.IntN(len(patterns))]
		}
		return s
	}
	check := func(a, b Scope) (overlap bool) {
		want := slices.ContainsFunc(names, func(n string) bool { return a.Covers(n) && b.Covers(n) })
		if got := a.Overlaps(b); got != want {
			t.Errorf("%q overlaps %q: %v", a, b, got)
		}
		if a.Overlaps(b) != b.Overlaps(a) {
			t.Errorf("%q overlaps %q, but not the other way round", a, b)
		}
		return want
	}
	for _, p := range patterns {
		for _, q := range patterns {
			check(Scope{p}, Scope{q})
		}
	}
	some := 0
	for range 20000 {
		if check(scope(), scope()) {
			some++
		}
	}
	if some < 1000 || some > 19000 {
		t.Errorf("%d of 20000 overlap: the scopes are too much alike to tell", some)
	}
}

// In line the higher priority comes first, then the older session; what is equal
// in both still has an order, and the same one for everybody.
func TestInLine(t *testing.T) {
	s := func(id SessionID, priority int, opened uint64) Session {
		return Session{ID: id, Candidate: tenure.Candidate{ID: "x", Priority: priority}, Opened: opened}
	}
	want := []Session{s("g", 2, 9), s("f", 1, 1), s("e", 1, 2), s("a", 0, 3), s("c", 0, 3), s("d", 0, 4), s("b", -1, 0)}
	r := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		line := slices.Clone(want)
		r.Shuffle(len(line), func(i, j int) { line[i], line[j] = line[j], line[i] })
		slices.SortFunc(line, InLine)
		if !slices.EqualFunc(line, want, func(a, b Session) bool { return a.ID == b.ID }) {
			t.Fatalf("got %v", line)
		}
	}
	for i, a := range want {
		for j, b := range want {
			if got := InLine(a, b); got > 0 != (i > j) || got < 0 != (i < j) {
				t.Errorf("InLine(%s, %s) = %d", a.ID, b.ID, got)
			}
		}
	}
}
