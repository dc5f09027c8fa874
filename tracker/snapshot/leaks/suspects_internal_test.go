package leaks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSuspectAsText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 µs", 1 << 10: "1.1 µs", 1 << 20: "1.1 ms", 1 << 26: "68 ms", time.Second: "1 s", 9_950 * time.Millisecond: "10 s",
		59_001 * time.Millisecond: "60 s", 90 * time.Second: "1.5 min", 100 * time.Hour: "100 h",
	} {
		assert.Equal(t, want, roughly(d))
	}
	for share, want := range map[float64]string{0.99: "99 %", 0.9999: "99 %", 1: "all"} {
		assert.Equal(t, want, percent(share))
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 2871: "2,871", 12_345_678: "12,345,678"} {
		assert.Equal(t, want, grouped(n))
	}
}

func TestStacksThatFree(t *testing.T) {
	assert.True(t, stackCount{live: 29, total: 2900}.frees())
	assert.True(t, stackCount{live: 5, total: 10}.frees())
	assert.False(t, stackCount{live: 6, total: 10}.frees())
	assert.False(t, stackCount{live: 6, total: 6}.frees())
}
