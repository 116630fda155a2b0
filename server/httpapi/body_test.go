package httpapi

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
)

type inner struct {
	Version int               `json:"version"`
	Values  map[string]string `json:"values,omitempty"`
}

type base struct {
	Session string `json:"session,omitempty"`
}

type form struct {
	base
	NodeID string          `json:"node_id"`
	TTLMS  int64           `json:"ttl_ms,omitempty"`
	Fenced bool            `json:"fenced,omitempty"`
	Groups []string        `json:"groups,omitempty"`
	Seen   []inner         `json:"seen,omitempty"`
	To     *inner          `json:"to,omitempty"`
	Raw    json.RawMessage `json:"raw,omitempty"`
	Small  uint8           `json:"small,omitempty"`
}

// A body with a mistake is refused with the place and the kind of the mistake, in the words of
// JSON: no name of a Go type or package, and no field that was silently ignored.
func TestBodyMistakes(t *testing.T) {
	for body, want := range map[string]string{
		`{"node_id":"a","ttl_ms":1,"groups":["a"],"seen":[{"version":1,"values":{"a":"b"}}],"to":null,"raw":{"x":1,"x":2},"session":"s"}`: "",
		`{"node_di":"a"}`:                               `unknown field "node_di"; did you mean "node_id"?`,
		`{"ttl":"8s"}`:                                  `unknown field "ttl"; did you mean "ttl_ms"?`,
		`{"nodeId":"a"}`:                                `unknown field "nodeId"; did you mean "node_id"?`,
		`{"NODE_ID":"a"}`:                               `unknown field "NODE_ID"; did you mean "node_id"?`,
		`{"colour":"red"}`:                              `unknown field "colour"; known fields: `,
		`{"seen":[{"version":1},{"versio":1}]}`:         `unknown field "seen[1].versio"; did you mean "version"?`,
		`{"sesion":"s"}`:                                `did you mean "session"?`,
		`{"node_id":"a","node_id":"b"}`:                 `field "node_id" is there twice`,
		`{"node_id":"a","node_\u0069d":"b"}`:            `field "node_id" is there twice`,
		`{"to":{"values":{"k":"1","k":"2"}}}`:           `field "to.values.k" is there twice`,
		`{"node_id":1}`:                                 `node_id: want a string, not a number`,
		`{"ttl_ms":"8s"}`:                               `ttl_ms: want a whole number, not a string`,
		`{"ttl_ms":1.5}`:                                `ttl_ms: want a whole number, not 1.5`,
		`{"ttl_ms":99999999999999999999}`:               `ttl_ms: 99999999999999999999 is out of range`,
		`{"small":-1}`:                                  `small: -1 is out of range`,
		`{"fenced":"yes"}`:                              `fenced: want true or false, not a string`,
		`{"groups":"a"}`:                                `groups: want a list, not a string`,
		`{"groups":["a",[]]}`:                           `groups[1]: want a string, not a list`,
		`{"to":[]}`:                                     `to: want an object, not a list`,
		`{"to":{"values":{"k":true}}}`:                  `to.values.k: want a string, not true or false`,
		`[]`:                                            `want an object, not a list`,
		`{"node_id":"a"`:                                `the JSON ends early`,
		`{"node_id":"a",}`:                              `not JSON`,
		`{"node_id":"a"} {}`:                            `something follows the JSON value`,
		`{"` + strings.Repeat("x", 5000) + `":1}`:       `unknown field "xxx`,
		strings.Repeat("[", 20_000):                     `not JSON`,
		`{"raw":` + strings.Repeat("[", 5_000) + `}`:    `not JSON`,
		`{"node_id":` + strings.Repeat("[", 5_000) + ``: `the JSON ends early`,
	} {
		var v form
		err := ReadJSON(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body)), 1<<20, false, &v)
		var p *Problem
		switch {
		case want == "" && err == nil:
		case want == "" || !errors.As(err, &p) || p.Code != "bad_body" || !strings.Contains(p.Detail, want):
			t.Errorf("%.80s: %v, want %s", body, err, want)
		case len(p.Detail) > 400 || strings.Contains(p.Detail, "json:") || strings.Contains(p.Detail, "Go "):
			t.Errorf("%.80s: %s", body, p.Detail)
		}
	}
}
