package leaks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestNumbersAsText(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 2871: "2,871", 12_345_678: "12,345,678"} {
		assert.Equal(t, want, grouped(n))
	}
}

func TestAgesAsText(t *testing.T) {
	assert.Equal(t, "4 to 36 min", fromTo(4*time.Minute, 36*time.Minute))
	assert.Equal(t, "40 s to 36 min", fromTo(40*time.Second, 36*time.Minute))
	assert.Equal(t, "36 min", fromTo(36*time.Minute-time.Second, 36*time.Minute))
}

func TestRatesAsText(t *testing.T) {
	for want, rate := range map[string][2]float64{
		"8,300 more each hour lately (12,000 at first)": {8281, 12_345},
		"30 more each hour lately":                      {30.2, 20},
		"9.5 more each hour lately":                     {9.51, 11},
		"36 more each day lately (72 at first)":         {1.5, 3},
		"0.24 more each day lately":                     {0.01, 0},
		"6,000 more each minute lately":                 {360_000, 400_000},
	} {
		assert.Equal(t, want, rates(rate[0], rate[1]))
	}
}

func TestStacksThatFree(t *testing.T) {
	assert.True(t, stackCount{live: 29, total: 2900}.frees())
	assert.True(t, stackCount{live: 5, total: 10}.frees())
	assert.False(t, stackCount{live: 6, total: 10}.frees())
	assert.False(t, stackCount{live: 6, total: 6}.frees())
}
