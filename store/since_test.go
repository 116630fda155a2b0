package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
)

// history makes the view of a group with these terms, written as "3a-resigned
// 4b": token, candidate, and the reason that was recorded for the end.
func history(terms string, state tenure.State) View {
	v := View{Record: Record{Group: "g"}, State: state}
	for _, word := range strings.Fields(terms) {
		var t Term
		var rest string
		if _, err := fmt.Sscanf(word, "%d%s", &t.Token, &rest); err != nil {
			panic(err)
		}
		name, reason, _ := strings.Cut(rest, "-")
		t.Candidate, t.Reason = name, Reason(reason)
		t.Begin = time.Unix(int64(t.Token), 0)
		v.Terms = append(v.Terms, t)
		v.Token, v.Candidate = t.Token, tenure.Candidate{ID: name, Address: name + ":1"}
	}
	return v
}

// Since closes the gaps of a level-triggered watch from the terms inside the
// record: everything that began or ended after the cursor is told once, in
// order, and it says so when the record does not go back far enough.
func TestSince(t *testing.T) {
	const led, vacant, unknown = tenure.Led, tenure.Vacant, tenure.Unknown
	for _, tt := range []struct {
		name     string
		terms    string
		state    tenure.State
		token    fence.Token
		after    tenure.State
		want     string // led and vacant, with token, candidate and reason
		complete bool
	}{
		{"nothing new, led", "1a", led, 1, led, "", true},
		{"nothing new, vacant", "1a-resigned", vacant, 1, vacant, "", true},
		{"nothing new, never led", "", vacant, 0, vacant, "", true},
		{"the first term", "1a", led, 0, vacant, "led 1a", true},
		{"the first term, and its end", "1a-resigned", vacant, 0, vacant, "led 1a, vacant 1a resigned", true},
		{"the end of the present term", "1a-resigned", vacant, 1, led, "vacant 1a resigned", true},
		{"an end that is not written down yet", "1a", vacant, 1, led, "vacant 1a expired", true},
		{"the next term", "1a-lost 2b", led, 1, vacant, "led 2b", true},
		{"a change", "1a-transferred 2b", led, 1, led, "vacant 1a transferred, led 2b", true},
		{"a whole term in between", "1a-resigned 2b-closed 3c", led, 1, led,
			"vacant 1a resigned, led 2b, vacant 2b closed, led 3c", true},
		{"a whole term in between, from its vacancy", "1a-resigned 2b-closed 3c-expired", vacant, 1, vacant,
			"led 2b, vacant 2b closed, led 3c, vacant 3c expired", true},
		{"old terms are passed over", "1a-resigned 2b-closed 3c", led, 3, led, "", true},
		{"an older term whose end was never written down", "1a 2b", led, 1, led, "vacant 1a expired, led 2b", true},

		// The record begins with token 5.
		{"the oldest that is remembered", "5a-resigned 6b", led, 5, led, "vacant 5a resigned, led 6b", true},
		{"older than is remembered", "5a-resigned 6b", led, 3, led, "led 5a, vacant 5a resigned, led 6b", false},
		{"older than is remembered, from the beginning", "5a-resigned 6b", led, 0, vacant, "led 5a, vacant 5a resigned, led 6b", false},
		{"older than is remembered, from its vacancy", "5a-resigned 6b", led, 3, vacant, "led 5a, vacant 5a resigned, led 6b", false},

		// Tokens jump when the epoch is raised; the counter inside goes on.
		{"the first term, in a later epoch", "1099511627777a", led, 0, vacant, "led 1099511627777a", true},
		{"a gap in the tokens", "1a-resigned 1099511627778b", led, 1, led, "vacant 1a resigned, led 1099511627778b", true},
		{"between two that are remembered", "1a-resigned 9b", led, 4, led, "led 9b", true},

		{"rewound to a led group", "1a-resigned 2b", led, 7, led, "led 2b", false},
		{"rewound to a vacant group", "1a-resigned", vacant, 7, vacant, "vacant 1a resigned", false},
		{"rewound to the beginning", "", vacant, 7, led, "vacant 0", false},

		{"never led, to one who knows nothing", "", vacant, 0, unknown, "vacant 0", true},
		{"from the beginning, to one who knows nothing", "1a-resigned 2b", led, 0, unknown, "led 1a, vacant 1a resigned, led 2b", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := history(tt.terms, tt.state)
			changes, complete := Since(v, Cursor{Token: tt.token, State: tt.after})
			var got []string
			for _, l := range changes {
				if l.Group != "g" {
					t.Errorf("group %q", l.Group)
				}
				if l.Token != 0 && l.Since.Unix() != int64(l.Token) {
					t.Errorf("token %d began at %v", l.Token, l.Since)
				}
				if l.Token == v.Token && l.Candidate.Address != v.Candidate.Address {
					t.Errorf("the newest candidate is not whole: %+v", l.Candidate)
				}
				got = append(got, strings.TrimSpace(fmt.Sprintf("%v %d%s %s", l.State, l.Token, l.Candidate.ID, l.Reason)))
			}
			if s := strings.Join(got, ", "); s != tt.want || complete != tt.complete {
				t.Errorf("got  %q, complete: %v\nwant %q, complete: %v", s, complete, tt.want, tt.complete)
			}
		})
	}
}

// Whoever follows a group with a cursor hears every term begin once and end
// once, in order, however many views are skipped, as long as no more terms are
// skipped than a record carries.
func TestSinceTellsEachOnce(t *testing.T) {
	const terms = 40
	var views []View // all that there were
	var all []Term
	for token := fence.Token(1); token <= terms; token++ {
		all = append(all, Term{Token: token, Candidate: "a"})
		for _, state := range []tenure.State{tenure.Led, tenure.Vacant} {
			v := View{Record: Record{Group: "g", Token: token}, State: state}
			if state == tenure.Vacant {
				all[len(all)-1].Reason = Resigned
			}
			v.Terms = append(v.Terms, all[max(0, len(all)-TermsKept):]...)
			views = append(views, v)
		}
	}
	for skip := 1; skip <= 2*(TermsKept-1); skip++ {
		seen := Cursor{State: tenure.Vacant}
		var told []string
		for i := skip - 1; i < len(views); i += skip {
			changes, complete := Since(views[i], seen)
			if !complete {
				t.Fatalf("every %dth view: the gap before view %d is not closed", skip, i)
			}
			for _, l := range changes {
				told = append(told, fmt.Sprint(l.State, l.Token))
			}
			seen = Cursor{Token: views[i].Token, State: views[i].State}
		}
		for i, got := range told {
			if want := fmt.Sprint(views[i].State, views[i].Token); got != want {
				t.Fatalf("every %dth view: told %s, want %s", skip, got, want)
			}
		}
		if len(told) != len(views)/skip*skip {
			t.Errorf("every %dth view: %d changes told of %d", skip, len(told), len(views)/skip*skip)
		}
	}
}
