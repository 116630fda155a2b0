package httpapi

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// For a caller that does not read, no more than about SendBuffer bytes are buffered.
func TestSendBuffer(t *testing.T) {
	const buffer, most = 64 << 10, 1 << 20
	taken := make(chan int, 1)
	s := serveHere(t, func(w http.ResponseWriter, _ *http.Request) {
		n, piece := 0, make([]byte, 32<<10)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		for n < 16*most {
			some, err := w.Write(piece)
			if n += some; err != nil {
				break
			}
		}
		taken <- n
	}, Limits{SendBuffer: buffer})
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if n := <-taken; n > most {
		t.Errorf("%d bytes were taken for a caller that does not read", n)
	}
}
