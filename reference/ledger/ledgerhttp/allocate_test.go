package ledgerhttp

import (
	"encoding/json"
	"testing"

	"github.com/tenurehq/tenure/reference/ledger/api"
)

// The code without reflection reads and writes the same as package json.
func TestRangeByHand(t *testing.T) {
	for _, body := range []string{`{"n":1}`, `{"n":0}`, `{"n":1000000}`, `{"first":1,"last":2}`, `{"first":9007199254740991,"last":9007199254740991}`} {
		var want api.RangeBody
		if err := json.Unmarshal([]byte(body), &want); err != nil {
			t.Fatal(err)
		}
		if got, ok := parseRange([]byte(body)); !ok || got != want {
			t.Errorf("%s is read as %+v, %v", body, got, ok)
		}
	}
	for _, body := range []string{``, `{}`, `{"n":}`, `{"n":01}`, `{"n":-1}`, `{"n":1.5}`, `{"n":1e3}`, `{"n": 1}`, `{"n":1`, `{"n":1}}`, `{"n":1,"n":2}`, `{"n":99999999999999999}`,
		`{"first":1}`, `{"first":1,"last":}`, `{"first":,"last":1}`, `{"first":1,"last":2`, `{"last":2,"first":1}`, `{"first":1,"last":2,"digest":"x"}`} {
		if got, ok := parseRange([]byte(body)); ok {
			t.Errorf("%s is read as %+v", body, got)
		}
	}
	for _, a := range []api.RangeAnswer{{}, {Resource: "r", Sequence: "ids", Token: 7, First: 1, Last: 2, AtMS: 1234},
		{Resource: `"<ü>\` + "\u2028\x01", Sequence: "a b", Token: 1<<53 - 1, First: 1<<53 - 1, Last: 1<<53 - 1, AtMS: -1}} {
		want, err := json.Marshal(a)
		if got := string(appendRange(nil, a)); err != nil || got != string(want)+"\n" {
			t.Errorf("%+v is written as %s, want %s, %v", a, got, want, err)
		}
	}
}
