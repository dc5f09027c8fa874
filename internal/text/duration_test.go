package text_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 µs", 1 << 10: "1.1 µs", 1 << 20: "1.1 ms", 1 << 26: "68 ms", time.Second: "1 s", 9_950 * time.Millisecond: "10 s",
		59_001 * time.Millisecond: "60 s", 90 * time.Second: "1.5 min", 100 * time.Hour: "100 h",
	} {
		assert.Equal(t, want, text.Duration(d))
	}
}
