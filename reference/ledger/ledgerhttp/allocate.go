package ledgerhttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// allocate handles the most frequent call, so it does not use reflection to encode its few
// bytes.
func (h *handler) allocate(w http.ResponseWriter, r *http.Request) error {
	b, err := h.stamp(r)
	if err != nil {
		return err
	}
	body, err := h.rangeBody(w, r)
	if err != nil {
		return err
	}
	name := r.PathValue("name")
	b.Digest = body.Digest
	b.Writes = []api.Write{{Sequence: &api.SequenceWrite{Name: name, First: body.First, Last: body.Last, N: body.N}}}
	a, err := h.l.Apply(r.Context(), b)
	if err == nil && (len(a.Outcomes) != 1 || a.Outcomes[0].Sequence == nil) {
		err = errors.New("the batch with this stamp took no numbers")
	}
	if err != nil {
		return err
	}
	headers(w, a)
	w.Header().Set("Content-Type", "application/json")
	taken := a.Outcomes[0].Sequence
	_, _ = w.Write(appendRange(make([]byte, 0, 256), api.RangeAnswer{Resource: a.Resource, Sequence: name, Token: a.Token, First: taken.First, Last: taken.Last, AtMS: a.AtMS}))
	return nil
}

// rangeBody reads the body as our clients write it, and leaves any other form to
// httpapi.ReadJSON.
func (h *handler) rangeBody(w http.ResponseWriter, r *http.Request) (body api.RangeBody, err error) {
	const most = 64
	if n := r.ContentLength; n > 0 && n <= min(most, h.maxBody) {
		data := make([]byte, n)
		read, err := io.ReadFull(r.Body, data)
		if body, ok := parseRange(data); ok && err == nil {
			return body, nil
		}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(data[:read]), r.Body), r.Body}
	}
	err = httpapi.ReadJSON(w, r, h.maxBody, false, &body)
	return body, err
}

// parseRange reads {"n":1} and {"first":1,"last":2}, without spaces.
func parseRange(data []byte) (body api.RangeBody, ok bool) {
	if rest, found := bytes.CutPrefix(data, []byte(`{"n":`)); found {
		body.N, rest, ok = digits(rest)
		return body, ok && string(rest) == "}"
	}
	rest, found := bytes.CutPrefix(data, []byte(`{"first":`))
	if !found {
		return body, false
	}
	if body.First, rest, ok = digits(rest); !ok {
		return body, false
	}
	if rest, found = bytes.CutPrefix(rest, []byte(`,"last":`)); !found {
		return body, false
	}
	body.Last, rest, ok = digits(rest)
	return body, ok && string(rest) == "}"
}

// digits reads a JSON number of up to 16 digits.
func digits(data []byte) (n uint64, rest []byte, ok bool) {
	const most = 16
	i := 0
	for ; i < len(data) && i <= most && data[i] >= '0' && data[i] <= '9'; i++ {
		n = n*10 + uint64(data[i]-'0')
	}
	return n, data[i:], i > 0 && i <= most && (data[0] != '0' || i == 1)
}

// appendRange is json.Marshal of the answer, and a newline.
func appendRange(to []byte, a api.RangeAnswer) []byte {
	number := func(name string, n uint64) {
		to = append(to, name...)
		to = strconv.AppendUint(to, n, 10)
	}
	to = appendString(append(to, `{"resource":`...), a.Resource)
	to = appendString(append(to, `,"sequence":`...), a.Sequence)
	number(`,"token":`, uint64(a.Token))
	number(`,"first":`, a.First)
	number(`,"last":`, a.Last)
	to = strconv.AppendInt(append(to, `,"at_ms":`...), a.AtMS, 10)
	return append(to, "}\n"...)
}

func appendString(to []byte, s string) []byte {
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == '/' {
			continue
		}
		text, _ := json.Marshal(s) // a string can always be
		return append(to, text...)
	}
	to = append(to, '"')
	to = append(to, s...)
	return append(to, '"')
}
