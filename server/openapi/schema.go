package openapi

import (
	"reflect"
	"strings"
)

// schema returns the schema of a value as encoding/json encodes it.
func (d *Document) schema(v any) any {
	if v == Object {
		return map[string]any{"type": "object"}
	}
	return d.typ(reflect.TypeOf(v))
}

// described is a type with its own JSON form.
type described interface{ OpenAPISchema() map[string]any }

func (d *Document) typ(t reflect.Type) any {
	if own, ok := reflect.Zero(t).Interface().(described); ok {
		return own.OpenAPISchema()
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.typ(t.Elem())
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": d.typ(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": d.typ(t.Elem())}
	case reflect.Struct:
		if _, known := d.schemas[t.Name()]; !known {
			d.schemas[t.Name()] = nil // the type may contain itself
			d.schemas[t.Name()] = d.object(t)
		}
		return ref(t.Name())
	default:
		panic("openapi: " + t.String() + " has no schema")
	}
}

func (d *Document) object(t reflect.Type) any {
	properties, required := map[string]any{}, []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			panic("openapi: " + t.Name() + "." + f.Name + " has no JSON name")
		}
		if !strings.Contains(options, "omitempty") {
			required = append(required, name)
		}
		properties[name] = annotate(d.typ(f.Type), f.Tag)
	}
	out := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		out["required"] = required
	}
	return out
}

// annotate adds the tags of a field: doc, and enum separated by commas.
func annotate(schema any, tag reflect.StructTag) any {
	m := schema.(map[string]any)
	if doc := tag.Get("doc"); doc != "" {
		m["description"] = doc
	}
	if enum := tag.Get("enum"); enum != "" {
		m["enum"] = strings.Split(enum, ",")
	}
	return m
}
