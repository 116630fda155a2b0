package httpapi

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// ReadJSON decodes the body, one JSON value of at most limit bytes, into v. It refuses unknown
// and duplicate fields, because an option must not be ignored. Names are case-sensitive. The
// error is a *Problem that says where the mistake is. An empty body, if it is allowed, leaves
// v unchanged.
func ReadJSON(w http.ResponseWriter, r *http.Request, limit int64, emptyAllowed bool, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return Refuse(http.StatusRequestEntityTooLarge, "body_too_large", "the body is larger than %d bytes", limit)
	case err != nil:
		return Refuse(http.StatusBadRequest, "body_incomplete", "the body ended early or arrived too slowly")
	case emptyAllowed && len(bytes.TrimSpace(body)) == 0:
		return nil
	}
	err = json.Unmarshal(body, v)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return badBody(syntaxMistake(syntax, len(body)))
	}
	// The body is valid JSON. The decoder accepts too much, and its errors name Go types.
	check := checker{json.NewDecoder(bytes.NewReader(body)), err != nil}
	check.UseNumber()
	if m := check.value(reflect.TypeOf(v)); m != nil {
		return badBody(m.String())
	}
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &typ):
		return badBody(typ.Field + ": " + typ.Value + " does not fit")
	case err != nil:
		return badBody(Plain(err))
	}
	return nil
}

func badBody(said string) *Problem {
	const most = 300
	if len(said) > most {
		said = said[:most] + "…"
	}
	return Refuse(http.StatusBadRequest, "bad_body", "request body: %s", strings.ToValidUTF8(said, ""))
}

func syntaxMistake(err *json.SyntaxError, size int) string {
	switch text := err.Error(); {
	case strings.HasPrefix(text, "unexpected end"):
		if size == 0 {
			return "want a JSON object, have nothing"
		}
		return "the JSON ends early"
	case strings.HasSuffix(text, "after top-level value"):
		return "something follows the JSON value"
	default:
		return fmt.Sprintf("not JSON: %s (byte %d)", text, err.Offset)
	}
}

// mistake describes a mistake in the value at a path.
type mistake struct{ before, path, after string }

func (m *mistake) String() string {
	if m.path == "" {
		return strings.TrimPrefix(m.after, ": ")
	}
	return m.before + m.path + m.after
}

// in adds the field or element that contains the mistake to its path.
func (m *mistake) in(parent string) *mistake {
	if m != nil && (m.path == "" || m.path[0] == '[') {
		m.path = parent + m.path
	} else if m != nil {
		m.path = parent + "." + m.path
	}
	return m
}

func wrong(format string, args ...any) *mistake {
	return &mistake{after: ": " + fmt.Sprintf(format, args...)}
}

// checker compares valid JSON with a Go type. It is not a decoder: it finds what the decoder
// should not accept, and describes what the decoder refused.
type checker struct {
	*json.Decoder
	failed bool // the decoder returned an error
}

// next returns the next token of JSON that is known to be valid.
func (c checker) next() json.Token {
	token, _ := c.Token()
	return token
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value compares the next value with a type.
func (c checker) value(t reflect.Type) *mistake {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	p := reflect.PointerTo(t)
	if t.Kind() == reflect.Interface || p.Implements(textUnmarshaler) || p.Implements(unmarshaler) {
		var raw json.RawMessage
		_ = c.Decode(&raw)
		if !c.failed || p.Implements(textUnmarshaler) || string(raw) == "null" {
			return nil
		}
		if own, ok := reflect.New(t).Interface().(json.Unmarshaler); ok {
			if err := own.UnmarshalJSON(raw); err != nil {
				return wrong("%s", Plain(err))
			}
		}
		return nil
	}
	begin := c.next()
	if begin == nil {
		return nil // null
	}
	switch t.Kind() {
	case reflect.Struct:
		return c.object(begin, func(name string) (reflect.Type, *mistake) { return lookUp(fieldsOf(t), name) })
	case reflect.Map:
		return c.object(begin, func(string) (reflect.Type, *mistake) { return t.Elem(), nil })
	case reflect.Slice, reflect.Array:
		if t.Kind() == reflect.Array || t.Elem().Kind() != reflect.Uint8 {
			return c.list(begin, t.Elem())
		}
		return plain(begin, reflect.TypeFor[string]()) // bytes are encoded in base64
	default:
		return plain(begin, t)
	}
}

func (c checker) object(begin json.Token, field func(string) (reflect.Type, *mistake)) *mistake {
	if begin != json.Delim('{') {
		return wrong("want an object, not %s", kindOf(begin))
	}
	seen := make(map[string]bool)
	for c.More() {
		name, _ := c.next().(string)
		t, m := field(name)
		switch {
		case m != nil:
			return m
		case seen[name]:
			return &mistake{`field "`, clip(name), `" is there twice`}
		}
		seen[name] = true
		if m := c.value(t); m != nil {
			return m.in(clip(name))
		}
	}
	c.next()
	return nil
}

func (c checker) list(begin json.Token, t reflect.Type) *mistake {
	if begin != json.Delim('[') {
		return wrong("want a list, not %s", kindOf(begin))
	}
	for i := 0; c.More(); i++ {
		if m := c.value(t); m != nil {
			return m.in("[" + strconv.Itoa(i) + "]")
		}
	}
	c.next()
	return nil
}

// plain compares a string, a number, true or false with a type.
func plain(begin json.Token, t reflect.Type) *mistake {
	fits, have := wanted(t), kindOf(begin)
	if have != fits && !(have == "a number" && fits == "a whole number") {
		return wrong("want %s, not %s", fits, have)
	}
	if fits != "a whole number" {
		return nil
	}
	text := begin.(json.Number).String()
	if strings.ContainsAny(text, ".eE") {
		return wrong("want a whole number, not %s", clip(text))
	}
	_, err := strconv.ParseInt(text, 10, t.Bits())
	if t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uintptr {
		_, err = strconv.ParseUint(text, 10, t.Bits())
	}
	if err != nil {
		return wrong("%s is out of range", clip(text))
	}
	return nil
}

func wanted(t reflect.Type) string {
	switch k := t.Kind(); {
	case t == reflect.TypeFor[json.Number]():
		return "a number"
	case k == reflect.String:
		return "a string"
	case k == reflect.Bool:
		return "true or false"
	case k >= reflect.Int && k <= reflect.Uintptr:
		return "a whole number"
	default:
		return "a number"
	}
}

func kindOf(begin json.Token) string {
	switch begin {
	case json.Delim('{'):
		return "an object"
	case json.Delim('['):
		return "a list"
	}
	return wanted(reflect.TypeOf(begin))
}

type field struct {
	name string
	typ  reflect.Type
}

var fieldCache sync.Map // of []field by reflect.Type

// fieldsOf lists the fields that encoding/json decodes, in order.
func fieldsOf(t reflect.Type) []field {
	if known, ok := fieldCache.Load(t); ok {
		return known.([]field)
	}
	var all []field
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "-" && (!f.Anonymous || name != "") {
			all = append(all, field{cmp.Or(name, f.Name), f.Type})
		}
	}
	fieldCache.Store(t, all)
	return all
}

func lookUp(fields []field, name string) (reflect.Type, *mistake) {
	for _, f := range fields {
		if f.name == name {
			return f.typ, nil
		}
	}
	m := &mistake{before: `unknown field "`, path: clip(name)}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	if like := Closest(name, names); like != "" {
		m.after = fmt.Sprintf(`"; did you mean %q?`, like)
	} else {
		m.after = `"; known fields: ` + strings.Join(names, ", ")
	}
	return nil, m
}

// Closest returns the name that is most similar to a misspelt one, or "".
func Closest(name string, names []string) string {
	plain := func(s string) string { return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s)) }
	name = plain(name)
	best, found := 0, ""
	if len(name) > 64 {
		return ""
	}
	for _, n := range names {
		p := plain(n)
		d := distance(name, p)
		if len(name) >= 3 && (strings.HasPrefix(p, name) || strings.HasPrefix(name, p)) {
			d = min(d, 1)
		}
		if d <= min(2, len(name)/2) && (found == "" || d < best) {
			best, found = d, n
		}
	}
	return found
}

// distance is the number of insertions, deletions and replacements of bytes between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
