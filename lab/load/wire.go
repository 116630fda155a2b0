package load

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"
)

// hostOf is the address of the node at a URL.
func hostOf(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.Port() == "" {
		return "", fmt.Errorf("url: %q is not http://host:port", raw)
	}
	return u.Host, nil
}

func request(host string, n int) []byte {
	path := "/next"
	if n > 1 {
		path += "?n=" + strconv.Itoa(n)
	}
	return []byte("POST " + path + " HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 0\r\n\r\n")
}

// wire is a connection that is kept open.
type wire struct {
	conn  net.Conn
	buf   []byte
	until time.Time // the current deadline
}

// answerSize is the largest answer, headers included. Usual answers have a few hundred bytes.
const answerSize = 16 << 10

func dial(d *net.Dialer, host string) (*wire, error) {
	c, err := d.Dial("tcp", host)
	if err != nil {
		return nil, err
	}
	return &wire{conn: c, buf: make([]byte, answerSize)}, nil
}

func (w *wire) close() { _ = w.conn.Close() }

// reply is an answer. Its bytes are valid until the next call.
type reply struct {
	status   int
	body     []byte
	location []byte
	last     bool // the server closes the connection
}

var (
	// errNotSent: no byte of the request was sent.
	errNotSent = errors.New("nothing was sent")
	errAnswer  = errors.New("unexpected answer")
)

// call sends the request and reads its answer. After errNotSent the call had no effect; after
// any other error its outcome is unknown. Then the connection cannot be used again.
func (w *wire) call(req []byte, timeout time.Duration) (reply, error) {
	// Setting a deadline costs time, so it is moved only when half of it has passed.
	if now := time.Now(); w.until.Sub(now) < timeout/2 {
		w.until = now.Add(timeout)
		if err := w.conn.SetDeadline(w.until); err != nil {
			return reply{}, errNotSent
		}
	}
	if n, err := w.conn.Write(req); err != nil {
		if n == 0 {
			return reply{}, errNotSent
		}
		return reply{}, err
	}
	have := 0
	for {
		n, err := w.conn.Read(w.buf[have:])
		have += n
		if end := bytes.Index(w.buf[:have], []byte("\r\n\r\n")); end >= 0 {
			return w.rest(have, end)
		}
		if err != nil {
			return reply{}, err
		}
		if have == len(w.buf) {
			return reply{}, errAnswer
		}
	}
}

// rest reads the body after the headers, which end at end.
func (w *wire) rest(have, end int) (reply, error) {
	r, length, err := parseHead(w.buf[:end])
	if err != nil {
		return r, err
	}
	begin := end + 4
	if length < 0 || begin+length > len(w.buf) {
		return r, errAnswer
	}
	for have < begin+length {
		n, err := w.conn.Read(w.buf[have:])
		have += n
		if err != nil && have < begin+length {
			return r, err
		}
	}
	if have > begin+length {
		return r, errAnswer // more than one answer
	}
	r.body = w.buf[begin : begin+length]
	return r, nil
}

// parseHead reads the status line and three headers. The length is -1 if there is none: nodes
// do not send chunks.
func parseHead(head []byte) (r reply, length int, err error) {
	line, head, _ := bytes.Cut(head, []byte("\r\n"))
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return r, -1, errAnswer
	}
	if r.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return r, -1, errAnswer
	}
	length = -1
	for len(head) > 0 {
		line, head, _ = bytes.Cut(head, []byte("\r\n"))
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return r, -1, errAnswer
		}
		switch {
		case len(name) == 14 && bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return r, -1, errAnswer
			}
		case len(name) == 8 && bytes.EqualFold(name, []byte("Location")):
			r.location = bytes.TrimSpace(value)
		case len(name) == 10 && bytes.EqualFold(name, []byte("Connection")):
			r.last = bytes.EqualFold(bytes.TrimSpace(value), []byte("close"))
		}
	}
	return r, length, nil
}

// number is the number after a key such as `"seq":`, 0 if there is none.
func number(body []byte, key string) uint64 {
	i := bytes.Index(body, []byte(key))
	if i < 0 {
		return 0
	}
	var n uint64
	for _, c := range bytes.TrimLeft(body[i+len(key):], " ") {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + uint64(c-'0')
	}
	return n
}

// text is the string after a key such as `"code":`. It has no escapes.
func text(body []byte, key string) string {
	i := bytes.Index(body, []byte(key))
	if i < 0 {
		return ""
	}
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(body[i+len(key):], " "), []byte(`"`))
	end := bytes.IndexByte(rest, '"')
	if !ok || end < 0 {
		return ""
	}
	return string(rest[:end])
}

func retryable(body []byte) bool { return bytes.Contains(body, []byte(`"retryable":true`)) }
