package fence

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// at is a stamp of the group in these tests.
func at(token Token, seq uint64) Stamp {
	return Stamp{Deployment: "prod", Group: "billing", Token: token, Seq: seq}
}

// A stamp that no leader can have written is refused, and the error names the field.
func TestStampValidate(t *testing.T) {
	for _, tt := range []struct {
		stamp Stamp
		want  string
	}{
		{at(1, 0), ""},
		{at(MaxToken, MaxSeq), ""},
		{Stamp{Group: "billing", Token: 1}, `fence: invalid deployment: must not be empty`},
		{Stamp{Deployment: "prod", Token: 1}, `fence: invalid group: must not be empty`},
		{at(0, 1), `fence: invalid token "0": from 1 to 2^53-1`},
		{at(MaxToken+1, 1), `fence: invalid token "9007199254740992": from 1 to 2^53-1`},
		{at(1, MaxSeq+1), `fence: invalid seq "9007199254740992": at most 2^53-1`},
	} {
		err := tt.stamp.Validate()
		if message(err) != tt.want || err != nil && !refusedAs[*InvalidError](err) {
			t.Errorf("%+v: %v, want %s", tt.stamp, err, tt.want)
		}
	}
}

// String shows the seq if there is one.
func TestStampString(t *testing.T) {
	if got := at(42, 0).String(); got != "prod/billing token 42" {
		t.Error(got)
	}
	if got := at(42, 7).String(); got != "prod/billing token 42 seq 7" {
		t.Error(got)
	}
}

// Stamps and marks survive JSON. Their field names must not change: they are sent over
// networks and stored in databases.
func TestJSON(t *testing.T) {
	for _, tt := range []struct {
		value any
		want  string
		into  func([]byte) (any, error)
	}{
		{at(42, 0), `{"deployment":"prod","group":"billing","token":42}`, decode[Stamp]},
		{at(MaxToken, MaxSeq), `{"deployment":"prod","group":"billing","token":9007199254740991,"seq":9007199254740991}`, decode[Stamp]},
		{Stamp{Deployment: "ü \"x\"", Group: "\u2028<>", Token: 1}, `{"deployment":"ü \"x\"","group":"\u2028\u003c\u003e","token":1}`, decode[Stamp]},
		{Stamp{Deployment: "prod", Group: "billing", Token: 42, Session: "h"}, `{"deployment":"prod","group":"billing","token":42,"session":"h"}`, decode[Stamp]},
		{Mark{}, `{"deployment":"","group":"","token":0}`, decode[Mark]},
		{Mark{Deployment: "prod", Group: "billing", Token: 42, Seq: 7, Digest: "d"}, `{"deployment":"prod","group":"billing","token":42,"seq":7,"digest":"d"}`, decode[Mark]},
	} {
		data, err := json.Marshal(tt.value)
		if err != nil || string(data) != tt.want {
			t.Errorf("%+v is written as %s, %v; want %s", tt.value, data, err, tt.want)
		}
		if back, err := tt.into(data); back != tt.value || err != nil {
			t.Errorf("%s is read back as %+v, %v", data, back, err)
		}
	}
}

func decode[T any](data []byte) (any, error) {
	var v T
	err := json.Unmarshal(data, &v)
	return v, err
}

// Unsigned accepts a valid JSON stamp that is not too long.
func TestUnsigned(t *testing.T) {
	long := func(n int) string {
		return fmt.Sprintf(`{"deployment":"prod","group":%q,"token":1}`, strings.Repeat("g", n))
	}
	fill := maxRaw - len(long(0))
	for _, tt := range []struct {
		name, raw string
		want      Stamp
		err       string // beginning of the error
	}{
		{"stamp", `{"deployment":"prod","group":"billing","token":42,"seq":7}`, at(42, 7), ""},
		{"field of a later version", `{"deployment":"prod","group":"billing","token":42,"new":[1]}`, at(42, 0), ""},
		{"longest", long(fill), Stamp{Deployment: "prod", Group: strings.Repeat("g", fill), Token: 1}, ""},
		{"too long", long(fill + 1), Stamp{}, `fence: invalid stamp "4097 bytes": at most 4096 bytes`},
		{"empty", ``, Stamp{}, `fence: invalid stamp: a JSON stamp: unexpected end of JSON input`},
		{"cut off", `{"deployment":"prod"`, Stamp{}, `fence: invalid stamp "{\"deployment\":\"prod\"": a JSON stamp: unexpected end`},
		{"two", `{"deployment":"prod","group":"billing","token":42}{}`, Stamp{}, `fence: invalid stamp "{\"deployment\":\"prod\",\"group\":\"bi… (52 bytes)": a JSON stamp: invalid character`},
		{"null", `null`, Stamp{}, `fence: invalid deployment: must not be empty`},
		{"no token", `{"deployment":"prod","group":"billing"}`, at(0, 0), `fence: invalid token "0": from 1 to 2^53-1`},
		{"token in quotes", `{"deployment":"prod","group":"billing","token":"42"}`, Stamp{}, `fence: invalid stamp `},
		{"token too large", `{"deployment":"prod","group":"billing","token":9007199254740992}`, Stamp{}, `fence: invalid stamp `},
		{"fraction", `{"deployment":"prod","group":"billing","token":42.5}`, Stamp{}, `fence: invalid stamp `},
		{"seq too large", `{"deployment":"prod","group":"billing","token":42,"seq":9007199254740992}`, at(42, MaxSeq+1), `fence: invalid seq "9007199254740992": at most 2^53-1`},
		{"seq negative", `{"deployment":"prod","group":"billing","token":42,"seq":-1}`, Stamp{}, `fence: invalid stamp `},
	} {
		got, err := Unsigned(context.Background(), []byte(tt.raw))
		if got != tt.want || !strings.HasPrefix(message(err), tt.err) || (err == nil) != (tt.err == "") {
			t.Errorf("%s: %+v, %v; want %+v, %s", tt.name, got, err, tt.want, tt.err)
		}
		if err != nil && !refusedAs[*InvalidError](err) {
			t.Errorf("%s: %#v is not an InvalidError", tt.name, err)
		}
	}
}

// Unsigned is a Verifier.
var _ Verifier = Unsigned
