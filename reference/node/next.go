package node

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// jsonType is the value of a header, shared by all answers: nobody changes it.
var jsonType = []string{"application/json"}

// next hands out numbers. It is written by hand, query and answer, because at tens of
// thousands of calls a second on two cores everything else is felt.
func (n *Node) next(w http.ResponseWriter, r *http.Request) {
	l := n.leading.Load()
	if l == nil {
		n.turnAway(w, r)
		return
	}
	if r.ContentLength != 0 {
		if err := discard(w, r); err != nil {
			n.fail(w, err)
			return
		}
	}
	count, err := howMany(r.URL.RawQuery)
	if err != nil {
		n.fail(w, err)
		return
	}
	first, err := l.seq.Next(count)
	if err != nil {
		n.failWrite(w, r, err)
		return
	}
	l.found()
	buf, _ := n.buffers.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	b := (*buf)[:0]
	b = append(b, `{"token":`...)
	b = strconv.AppendUint(b, uint64(l.seq.Token()), 10)
	b = append(b, `,"seq":`...)
	b = strconv.AppendUint(b, first, 10)
	if count > 1 {
		b = append(b, `,"last":`...)
		b = strconv.AppendUint(b, first+count-1, 10)
	}
	b = append(b, "}\n"...)
	w.Header()["Content-Type"] = jsonType
	_, _ = w.Write(b)
	*buf = b
	n.buffers.Put(buf)
}

// howMany reads the query of /next.
func howMany(query string) (uint64, error) {
	if query == "" {
		return 1, nil
	}
	text := query
	if len(query) > 2 && query[:2] == "n=" {
		text = query[2:]
		if n, ok := digits(text); ok {
			return n, nil
		}
	}
	v, err := url.ParseQuery(query)
	if err == nil {
		if text = v.Get("n"); text == "" && !v.Has("n") {
			return 1, nil
		}
		if n, ok := digits(text); ok {
			return n, nil
		}
	}
	return 0, &httpapi.Problem{Status: http.StatusBadRequest, Code: api.CodeRequest, Detail: fmt.Sprintf("n is %.32q: a number from 1 to %d", text, api.MaxNext)}
}

func digits(s string) (n uint64, ok bool) {
	if s == "" || len(s) > 6 {
		return 0, false
	}
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + uint64(c-'0')
	}
	return n, n >= 1 && n <= api.MaxNext
}

// discard reads a body that nobody asked for, within the limit: a body of unknown or
// great length must not be waited for.
func discard(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength > maxBody {
		w.Header().Set("Connection", "close")
		return tooLarge()
	}
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		return tooLarge()
	}
	return nil
}

func tooLarge() error {
	return &httpapi.Problem{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Detail: fmt.Sprintf("the body is larger than %d bytes", maxBody)}
}
