//go:build linux

package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// wire is a connection that sends one request repeatedly. It is cheaper than an http.Client,
// since it shares the cores with what is measured.
type wire struct {
	conn net.Conn
	in   *bufio.Reader
	ask  []byte
}

func dialWire(t *testing.T, raw string) *wire {
	t.Helper()
	w, err := newWire(raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// posts replaces the request, and returns the connection.
func (w *wire) posts(path string, body []byte) *wire {
	w.ask = append(fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, w.conn.RemoteAddr(), len(body)), body...)
	return w
}

// newWire connects; control, if set, is called before that.
func newWire(raw string, control func(fd int) error) (*wire, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: 30 * time.Second}
	if control != nil {
		d.Control = func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) { err = control(int(fd)) }), err)
		}
	}
	conn, err := d.Dial("tcp", u.Host)
	if err != nil {
		return nil, err
	}
	return &wire{conn: conn, in: bufio.NewReaderSize(conn, 2048), ask: []byte("GET " + u.RequestURI() + " HTTP/1.1\r\nHost: " + u.Host + "\r\n\r\n")}, nil
}

func (w *wire) call() error {
	length, err := w.begin()
	if err != nil {
		return err
	}
	_, err = w.in.Discard(length)
	return err
}

// begin sends the request and reads the head of the answer. length is that of the body; 0:
// the head does not say.
func (w *wire) begin() (length int, err error) {
	if _, err := w.conn.Write(w.ask); err != nil {
		return 0, err
	}
	first := true
	for {
		line, err := w.in.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
			rest, _ := io.ReadAll(io.LimitReader(w.in, int64(w.in.Buffered())))
			return 0, fmt.Errorf("%s\n%s", line, rest)
		}
		first = false
		if len(line) == 0 {
			return length, nil
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, err
			}
		}
	}
}
