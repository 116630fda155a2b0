package nodehttp

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// jsonType is a header value that all answers share. It must not be changed.
var jsonType = []string{"application/json"}

// next hands out numbers. Query and answer are coded by hand, because the usual packages are
// too slow for tens of thousands of calls a second on two cores.
func (n *handler) next(w http.ResponseWriter, r *http.Request) {
	l := n.Leading()
	if l == nil {
		n.fail(w, r, errNotLeading)
		return
	}
	if r.ContentLength != 0 {
		if err := discard(w, r); err != nil {
			n.fail(w, r, err)
			return
		}
	}
	count, err := howMany(r.URL.RawQuery)
	if err != nil {
		n.fail(w, r, err)
		return
	}
	first, err := l.Sequencer.Next(count)
	if err != nil {
		n.fail(w, r, n.writeError(err))
		return
	}
	l.Found()
	buf, _ := n.buffers.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	b := (*buf)[:0]
	b = append(b, `{"token":`...)
	b = strconv.AppendUint(b, uint64(l.Sequencer.Token()), 10)
	b = strconv.AppendUint(append(b, `,"seq":`...), first, 10)
	if count > 1 {
		b = strconv.AppendUint(append(b, `,"last":`...), first+count-1, 10)
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
	text, ok := strings.CutPrefix(query, "n=")
	if !ok || strings.ContainsAny(text, "&%+;") {
		v, err := url.ParseQuery(query)
		if err == nil && !v.Has("n") {
			return 1, nil
		}
		text = v.Get("n")
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < 1 || n > api.MaxNext {
		return 0, &httpapi.Problem{Status: http.StatusBadRequest, Code: api.CodeRequest, Detail: fmt.Sprintf("n is %.32q; it must be a number from 1 to %d", text, api.MaxNext)}
	}
	return n, nil
}

// discard reads a body that the call does not need, up to the limit, so that a very long body
// does not delay the call.
func discard(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength > maxBody {
		w.Header().Set("Connection", "close")
	} else if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody)); err == nil {
		return nil
	}
	return &httpapi.Problem{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Detail: fmt.Sprintf("the body is larger than %d bytes", maxBody)}
}
