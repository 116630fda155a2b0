package sqlfence

import (
	"errors"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/fence"
)

// A migration is split into whole statements: none begins inside a function, none is lost.
// (Package pgxfence tests them on real databases.)
func TestStatements(t *testing.T) {
	for _, d := range []Dialect{Postgres, SQLite, MySQL} {
		all := d.Statements()
		for _, s := range all {
			if !strings.HasPrefix(s, "CREATE ") && !strings.HasPrefix(s, "DO ") || !strings.HasSuffix(s, ";") || strings.Count(s, "$$")%2 != 0 {
				t.Errorf("%s: not a statement: %q", d, s)
			}
		}
		if n := strings.Count(d.Migration(), "\nCREATE ") + strings.Count(d.Migration(), "\nDO "); n != len(all) || n == 0 {
			t.Errorf("%s: %d statements of %d", d, len(all), n)
		}
	}
}

// The results of the SQL functions are decoded correctly. An unknown result is an error,
// never an admission.
func TestRefusal(t *testing.T) {
	s := fence.Stamp{Deployment: "prod", Group: "billing", Token: 4}
	mark := fence.Mark{Deployment: "prod", Group: "billing", Token: 5, Seq: 2, Digest: "d"}
	var stale *fence.StaleError
	err := refusal(`{"verdict":"stale","deployment":"prod","group":"billing","token":5,"seq":2,"digest":"d"}`, s, "")
	if !errors.As(err, &stale) || stale.Mark != mark || stale.Stamp != s {
		t.Errorf("stale: %v", err)
	}
	for _, said := range []string{"", "OK", "retry", "{}", `{"verdict":"maybe"}`, "null", "[]"} {
		if err := refusal(said, s, ""); err == nil || errors.Is(err, fence.ErrRefused) {
			t.Errorf("%q: %v", said, err)
		}
	}
	if err := Refusal("r", s, "40001", ""); err != nil {
		t.Errorf("a serialization failure is no refusal: %v", err)
	}
	if err := Refusal("r", s, "TN001", `{"verdict":"stale","deployment":"prod","group":"billing","token":5,"seq":2,"digest":"d"}`); !errors.As(err, &stale) {
		t.Errorf("TN001: %v", err)
	}
}
