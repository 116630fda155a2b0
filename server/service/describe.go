package service

import (
	"encoding/json"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/openapi"
)

// describe writes the OpenAPI document from the table: what is served and what is
// described are one.
func (s *Service) describe() ([]byte, error) {
	doc := openapi.New("Tenure", "1",
		"Leader election with fencing. Paths answer with /v1 before them and without. Names are 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit. "+
			"Tokens (term) stay below 2^53. Every refusal is a problem (RFC 9457) with a stable code.")
	for _, r := range s.routes {
		op := r.Doc
		op.Extra = map[string]any{"x-tenure-verb": string(r.Verb)}
		if len(r.Or) > 0 {
			op.Extra["x-tenure-or"] = r.Or
		}
		op.Open = r.Verb == auth.Open
		doc.Add(r.Method, "/v1"+r.Path, op)
	}
	return json.MarshalIndent(doc, "", " ")
}
