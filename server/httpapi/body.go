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
	if m := (&scanner{text: body, failed: err != nil}).value(reflect.TypeOf(v)); m != nil {
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

// scanner compares valid JSON with a Go type. It is not a decoder: it finds what the decoder
// should not accept, and describes what the decoder refused.
type scanner struct {
	text   []byte
	at     int
	failed bool // the decoder returned an error
}

// peek skips white space and returns the next byte.
func (s *scanner) peek() byte {
	for s.text[s.at] <= ' ' {
		s.at++
	}
	return s.text[s.at]
}

// take consumes the next byte if it is b.
func (s *scanner) take(b byte) bool {
	if s.peek() == b {
		s.at++
		return true
	}
	return false
}

// scalar consumes a string, number, true, false or null, and returns its text.
func (s *scanner) scalar() []byte {
	begin := s.at
	if s.text[s.at] == '"' {
		for s.at++; s.text[s.at] != '"'; s.at++ {
			if s.text[s.at] == '\\' {
				s.at++
			}
		}
		s.at++
		return s.text[begin:s.at]
	}
	for s.at < len(s.text) && !bytes.ContainsRune([]byte(" \t\r\n,]}"), rune(s.text[s.at])) {
		s.at++
	}
	return s.text[begin:s.at]
}

// skip consumes any value.
func (s *scanner) skip() {
	for depth := 0; ; {
		switch s.peek() {
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			depth--
			s.at++
		case ',', ':':
			s.at++
		default:
			s.scalar()
		}
		if depth == 0 {
			return
		}
	}
}

// key consumes the name of a field and the colon.
func (s *scanner) key() string {
	s.peek()
	quoted := s.scalar()
	s.take(':')
	if plain := quoted[1 : len(quoted)-1]; !bytes.ContainsRune(plain, '\\') {
		return string(plain)
	}
	var name string
	_ = json.Unmarshal(quoted, &name)
	return name
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value compares the next value with a type.
func (s *scanner) value(t reflect.Type) *mistake {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	begin := s.peek()
	switch p := reflect.PointerTo(t); {
	case begin == 'n', t.Kind() == reflect.Interface, p.Implements(textUnmarshaler):
		s.skip()
		return nil
	case p.Implements(unmarshaler):
		from := s.at
		s.skip()
		if s.failed {
			if err := reflect.New(t).Interface().(json.Unmarshaler).UnmarshalJSON(s.text[from:s.at]); err != nil {
				return wrong("%s", Plain(err))
			}
		}
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		return s.object(begin, func(name string) (reflect.Type, *mistake) { return lookUp(fieldsOf(t), name) })
	case reflect.Map:
		return s.object(begin, func(string) (reflect.Type, *mistake) { return t.Elem(), nil })
	case reflect.Slice, reflect.Array:
		if t.Kind() == reflect.Array || t.Elem().Kind() != reflect.Uint8 {
			return s.list(begin, t.Elem())
		}
		return s.plain(begin, reflect.TypeFor[string]()) // bytes are encoded in base64
	default:
		return s.plain(begin, t)
	}
}

func (s *scanner) object(begin byte, field func(string) (reflect.Type, *mistake)) *mistake {
	if begin != '{' {
		return wrong("want an object, not %s", kindOf(begin))
	}
	s.at++
	seen := make(map[string]bool)
	for !s.take('}') {
		s.take(',')
		name := s.key()
		t, m := field(name)
		switch {
		case m != nil:
			return m
		case seen[name]:
			return &mistake{`field "`, clip(name), `" is there twice`}
		}
		seen[name] = true
		if m := s.value(t); m != nil {
			return m.in(clip(name))
		}
	}
	return nil
}

func (s *scanner) list(begin byte, t reflect.Type) *mistake {
	if begin != '[' {
		return wrong("want a list, not %s", kindOf(begin))
	}
	s.at++
	for i := 0; !s.take(']'); i++ {
		s.take(',')
		if m := s.value(t); m != nil {
			return m.in("[" + strconv.Itoa(i) + "]")
		}
	}
	return nil
}

func (s *scanner) plain(begin byte, t reflect.Type) *mistake {
	number := begin == '-' || begin >= '0' && begin <= '9'
	if begin == '{' || begin == '[' {
		return wrong("want %s, not %s", wanted(t), kindOf(begin))
	}
	text := string(s.scalar())
	switch fits := wanted(t); {
	case fits == "a string" && begin != '"', fits == "true or false" && begin != 't' && begin != 'f', fits == "a number" && !number,
		fits == "a whole number" && !number:
		return wrong("want %s, not %s", fits, kindOf(begin))
	case fits != "a whole number":
		return nil
	case strings.ContainsAny(text, ".eE"):
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

func kindOf(begin byte) string {
	switch begin {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	default:
		return "a number"
	}
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
