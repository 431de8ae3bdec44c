// Package testlog keeps what is logged in a test.
package testlog

import (
	"bytes"
	"sync"
)

// Buffer keeps what is written to it. It may be written to and read at once. The
// zero Buffer is ready for use.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements [io.Writer].
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns all that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
