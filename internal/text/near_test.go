package text_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

func TestDistance(t *testing.T) {
	for pair, want := range map[[2]string]int{
		{"", ""}: 0, {"", "ab"}: 2, {"gpu", "gpu"}: 0, {"gpu", "gup"}: 1, {"serv", "serve"}: 1, {"batch", "bench"}: 2, {"ab", "yz"}: 2,
	} {
		assert.Equal(t, want, text.Distance(pair[0], pair[1]), pair)
		assert.Equal(t, want, text.Distance(pair[1], pair[0]), pair)
	}
}

func TestNear(t *testing.T) {
	words := []string{"serve", "seq", "quantize", "best-quantization", "batch", "h100", "h200"}
	for typed, want := range map[string][]string{
		"serv": {"serve"}, "sreve": {"serve"}, "quantise": {"quantize"}, "h101": {"h100"}, "h10": {"h100"}, "se": {"serve", "seq"}, "x": nil, "gpu": nil, strings.Repeat("a", 65): nil,
	} {
		assert.Equal(t, want, text.Near(typed, words), typed)
	}
}
