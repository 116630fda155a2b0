package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// WriteFrame writes the length of a JSON document, and then the document.
func WriteFrame(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	buf := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	_, err = w.Write(append(buf, body...))
	return err
}

// ReadFrame reads what WriteFrame wrote, at most most bytes.
func ReadFrame(r io.Reader, v any, most uint32) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > most {
		return fmt.Errorf("a frame of %d bytes, at most %d are read: not a peer", n, most)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}
