package host

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

func TestReadingsOfTheResidentSetAreShared(t *testing.T) {
	var r recent
	reads := alloc.Bytes(0)
	read := func() alloc.Bytes { reads++; return reads }
	now := time.Now()
	assert.Equal(t, alloc.Bytes(1), r.read(now, read))
	assert.Equal(t, alloc.Bytes(1), r.read(now.Add(maxAge), read))
	assert.Equal(t, alloc.Bytes(2), r.read(now.Add(maxAge+1), read))
	r.mu.Lock()
	assert.Equal(t, alloc.Bytes(3), r.read(now.Add(maxAge+1), read), "nobody waits")
	r.mu.Unlock()
	assert.Equal(t, alloc.Bytes(2), r.read(now.Add(maxAge+2), read))
}
