package check

import (
	"slices"
	"testing"

	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/verdict"
)

// A grant whose term never began does not end the vacancy. The vacancy before the next term
// counts from the end of the last term that began.
func TestVacancyOutlastsGrant(t *testing.T) {
	h := good(1)
	before := h.check(t).Terms
	i := slices.IndexFunc(before[:len(before)-1], func(x verdict.Term) bool { return x.Vacant > 0 && before[x.Token].Vacant > 0 })
	if i < 1 || int(before[i].Token) != i+1 {
		t.Fatalf("no two vacancies in a row: %+v", before)
	}
	h["nodes"] = slices.DeleteFunc(h["nodes"], func(e history.Event) bool {
		switch e := e.(type) {
		case history.Belief:
			return e.Token == before[i].Token
		case history.Attempt:
			return e.Token == before[i].Token
		}
		return false
	})
	for _, x := range h.check(t).Terms {
		if x.Token == before[i+1].Token && x.Vacant != before[i].Vacant {
			t.Errorf("token %d: vacant since %d, want %d, when token %d was gone", x.Token, x.Vacant, before[i].Vacant, before[i-1].Token)
		}
	}
}
