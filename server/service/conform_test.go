package service

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
)

type object = map[string]any

// document reads the OpenAPI document of a service.
func document(t testing.TB, s *Service) object {
	t.Helper()
	var doc object
	if err := json.Unmarshal(s.document, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// conforms checks an answer against the OpenAPI document: its path and status are described,
// and its body matches the schema.
func conforms(t testing.TB, doc object, method, target string, r reply) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	op := operation(doc, method, u.Path)
	if op == nil {
		if r.status != 404 && r.status != 405 {
			t.Errorf("%s %s answers %d and is not described", method, u.Path, r.status)
		}
		return
	}
	answer, ok := op["responses"].(object)[strconv.Itoa(r.status)].(object)
	if !ok {
		t.Errorf("%s %s answers %v, which is not described", method, u.Path, r)
		return
	}
	content, ok := answer["content"].(object)
	if !ok {
		if len(r.body) > 0 {
			t.Errorf("%s %s answers %v, which should have no body", method, u.Path, r)
		}
		return
	}
	kind, _, _ := mime.ParseMediaType(r.header.Get("Content-Type"))
	media, ok := content[kind].(object)
	if !ok {
		t.Errorf("%s %s answers %s with %d, which is not described", method, u.Path, kind, r.status)
		return
	}
	if !strings.HasSuffix(kind, "json") {
		return
	}
	var v any
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Errorf("%s %s: %v: %v", method, u.Path, r, err)
		return
	}
	for _, wrong := range check(doc, media["schema"].(object), v, "$") {
		t.Errorf("%s %s answers %v: %s", method, u.Path, r, wrong)
	}
}

// operation finds the description of a request.
func operation(doc object, method, path string) object {
	if !strings.HasPrefix(path, "/v1/") {
		path = "/v1" + path
	}
	parts := strings.Split(path, "/")
	var found object
	best := -1
	for pattern, ops := range doc["paths"].(object) {
		op, ok := ops.(object)[strings.ToLower(method)].(object)
		exact, fits := match(strings.Split(pattern, "/"), parts)
		if ok && fits && exact > best {
			found, best = op, exact
		}
	}
	return found
}

func match(pattern, parts []string) (exact int, fits bool) {
	if len(pattern) != len(parts) {
		return 0, false
	}
	for i, p := range pattern {
		switch {
		case p == parts[i]:
			exact++
		case !strings.HasPrefix(p, "{"):
			return 0, false
		}
	}
	return exact, true
}

// check validates a value against the part of JSON Schema that the document uses.
func check(doc, schema object, v any, at string) []string {
	if ref, ok := schema["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, "#/components/schemas/")
		return check(doc, doc["components"].(object)["schemas"].(object)[name].(object), v, at)
	}
	wrong := func(format string, args ...any) []string {
		return []string{at + ": " + fmt.Sprintf(format, args...)}
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, v) {
		return wrong("%v is none of %v", v, enum)
	}
	switch schema["type"] {
	case "string":
		if _, ok := v.(string); !ok {
			return wrong("%v is no string", v)
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			return wrong("%v is no boolean", v)
		}
	case "integer":
		if f, ok := v.(float64); !ok || f != float64(int64(f)) {
			return wrong("%v is no integer", v)
		}
	case "array":
		items, ok := v.([]any)
		if !ok {
			return wrong("%v is no array", v)
		}
		var all []string
		for i, item := range items {
			all = append(all, check(doc, schema["items"].(object), item, fmt.Sprintf("%s[%d]", at, i))...)
		}
		return all
	case "object":
		return checkObject(doc, schema, v, at)
	default:
		return wrong("the schema has type %v", schema["type"])
	}
	return nil
}

func checkObject(doc, schema object, v any, at string) []string {
	o, ok := v.(object)
	if !ok {
		return []string{fmt.Sprintf("%s: %v is no object", at, v)}
	}
	var all []string
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, ok := o[name.(string)]; !ok {
			all = append(all, fmt.Sprintf("%s: %s is missing", at, name))
		}
	}
	properties, _ := schema["properties"].(object)
	for name, x := range o {
		here := at + "." + name
		if p, ok := properties[name].(object); ok {
			all = append(all, check(doc, p, x, here)...)
			continue
		}
		switch more := schema["additionalProperties"].(type) {
		case bool:
			if !more {
				all = append(all, here+" is not described")
			}
		case object:
			all = append(all, check(doc, more, x, here)...)
		}
	}
	return all
}
