// Package openapi generates an OpenAPI 3.1 document from a table of routes and the Go types that
// their handlers decode and encode.
//
// It describes what encoding/json does with these types, so the description always has the
// form of the answers. The table lists the statuses; tests compare them with real answers. A
// framework would need to own the handlers, the errors and the streams.
package openapi

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// shape describes a body that is not a Go type.
type shape string

// The shapes.
const (
	Empty  shape = "empty"  // no body
	Text   shape = "text"   // text/plain
	Object shape = "object" // some JSON object
)

// Answers are the answers of an operation by status: a value of a Go type, or a shape; nil is a
// problem.
type Answers map[int]any

// Parameter of the query, or a header.
type Parameter struct {
	Name, Doc string
	Many      bool // may be repeated
}

// Operation describes one method of one path.
type Operation struct {
	Summary    string
	Query      []Parameter
	Headers    []Parameter
	In         any // the body; nil: none
	InOptional bool
	Out        Answers
	// Stream: 200 may also be text/event-stream, or lines of JSON with Lines.
	Stream, Lines bool
	// Open: no credentials are needed.
	Open  bool
	Extra map[string]any
}

// Document is an OpenAPI document. Encode it with encoding/json.
type Document struct {
	OpenAPI    string                    `json:"openapi"`
	Info       map[string]string         `json:"info"`
	Paths      map[string]map[string]any `json:"paths"`
	Components map[string]any            `json:"components"`

	schemas map[string]any
}

// Problems returns the statuses that any operation may answer with before its handler runs.
func Problems() []int {
	return []int{
		http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestEntityTooLarge,
		http.StatusTooManyRequests, http.StatusServiceUnavailable,
	}
}

// New returns a document without paths.
func New(title, version, about string) *Document {
	d := &Document{
		OpenAPI: "3.1.0", Info: map[string]string{"title": title, "version": version, "description": about},
		Paths: make(map[string]map[string]any), schemas: make(map[string]any),
	}
	d.schemas["Problem"] = problemSchema()
	d.Components = map[string]any{
		"schemas": d.schemas,
		"securitySchemes": map[string]any{
			"bearer": map[string]any{"type": "http", "scheme": "bearer"},
			"mtls":   map[string]any{"type": "mutualTLS"},
		},
	}
	return d
}

func problemSchema() map[string]any {
	text := map[string]any{"type": "string"}
	return map[string]any{
		"type": "object", "description": "A refusal (RFC 9457). Further members say more, such as leader_node_id, term, retry_after_ms.",
		"required": []string{"type", "title", "status", "code", "retryable"},
		"properties": map[string]any{
			"type": text, "title": text, "detail": text,
			"status":    map[string]any{"type": "integer"},
			"code":      map[string]any{"type": "string", "description": "stable, for programs"},
			"retryable": map[string]any{"type": "boolean", "description": "whether the same request may succeed later"},
		},
		"additionalProperties": true,
	}
}

// Add adds an operation.
func (d *Document) Add(method, path string, op Operation) {
	o := map[string]any{"summary": op.Summary, "responses": d.responses(op), "operationId": operationID(method, path)}
	maps.Copy(o, op.Extra)
	if p := d.parameters(path, op); len(p) > 0 {
		o["parameters"] = p
	}
	if op.In != nil {
		o["requestBody"] = map[string]any{"required": !op.InOptional, "content": d.content("application/json", op.In)}
	}
	if op.Open {
		o["security"] = []any{}
	} else {
		o["security"] = []any{map[string]any{"bearer": []string{}}, map[string]any{"mtls": []string{}}, map[string]any{}}
	}
	if d.Paths[path] == nil {
		d.Paths[path] = make(map[string]any)
	}
	d.Paths[path][strings.ToLower(method)] = o
}

func operationID(method, path string) string {
	id := strings.ToLower(method)
	for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return strings.ContainsRune("/{}.-_", r) }) {
		id += strings.ToUpper(part[:1]) + part[1:]
	}
	return id
}

func (d *Document) parameters(path string, op Operation) []any {
	text := map[string]any{"type": "string"}
	var out []any
	for part := range strings.SplitSeq(path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			out = append(out, map[string]any{"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true, "schema": text})
		}
	}
	for _, q := range op.Query {
		schema := text
		if q.Many {
			schema = map[string]any{"type": "array", "items": text}
		}
		out = append(out, map[string]any{"name": q.Name, "in": "query", "description": q.Doc, "schema": schema})
	}
	for _, h := range op.Headers {
		out = append(out, map[string]any{"name": h.Name, "in": "header", "description": h.Doc, "schema": text})
	}
	return out
}

func (d *Document) responses(op Operation) map[string]any {
	all := maps.Clone(op.Out)
	for _, status := range Problems() {
		if _, described := all[status]; !described && (!op.Open || status == http.StatusBadRequest || status == http.StatusServiceUnavailable) {
			all[status] = nil
		}
	}
	out := make(map[string]any, len(all))
	for _, status := range slices.Sorted(maps.Keys(all)) {
		answer := map[string]any{"description": http.StatusText(status)}
		switch v := all[status]; {
		case v == nil:
			answer["content"] = map[string]any{"application/problem+json": map[string]any{"schema": ref("Problem")}}
		case v == Empty:
		case v == Text:
			answer["content"] = map[string]any{"text/plain": map[string]any{"schema": map[string]any{"type": "string"}}}
		default:
			answer["content"] = d.content("application/json", v)
		}
		if status == http.StatusOK && op.Stream {
			kind := "text/event-stream"
			if op.Lines {
				kind = "application/x-ndjson"
			}
			answer["content"].(map[string]any)[kind] = map[string]any{"schema": map[string]any{"type": "string"}}
		}
		out[strconv.Itoa(status)] = answer
	}
	return out
}

func (d *Document) content(kind string, v any) map[string]any {
	return map[string]any{kind: map[string]any{"schema": d.schema(v)}}
}

func ref(name string) map[string]any { return map[string]any{"$ref": "#/components/schemas/" + name} }
