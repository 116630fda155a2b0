package child

import (
	"bytes"
	"sync"
)

// Buffer keeps the output of a process. It can be read while it is written to.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Tail is a Buffer that keeps only the end of what is written to it.
type Tail struct{ Buffer }

const tailSize = 64 << 10

// Write implements io.Writer.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	t.buf.Next(t.buf.Len() - min(t.buf.Len(), tailSize))
	return len(p), nil
}
