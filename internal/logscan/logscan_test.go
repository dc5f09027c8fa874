package logscan_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/logscan"
)

func scan(t *testing.T, r io.Reader, words []string, more func(string) bool) (found []string) {
	require.NoError(t, logscan.Lines(r, words, func(n int, line []byte) bool {
		found = append(found, fmt.Sprintf("%d:%s", n, line))
		return more != nil && more(string(line))
	}))
	return found
}

func TestLines(t *testing.T) {
	text := "one\n\ntwo memory\r\nthree\nfour\nmemory"
	words := []string{"memory", "ree"}
	assert.Equal(t, []string{"3:two memory", "4:three", "6:memory"}, scan(t, strings.NewReader(text), words, nil))
	assert.Equal(t, []string{"3:two memory", "4:three", "6:memory"}, scan(t, iotest.OneByteReader(strings.NewReader(text)), words, nil))
	next := func(line string) bool { return strings.HasPrefix(line, "two") || line == "four" || line == "three" }
	assert.Equal(t, []string{"3:two memory", "4:three", "5:four", "6:memory"}, scan(t, strings.NewReader(text), words, next))
	assert.Empty(t, scan(t, strings.NewReader(""), words, nil))
	assert.ErrorIs(t, logscan.Lines(iotest.ErrReader(io.ErrClosedPipe), words, nil), io.ErrClosedPipe)
}

// TestLikeTheObviousWay compares with a split of the text, at every place of a line in the window that is read.
func TestLikeTheObviousWay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	words := []string{"out of memory", "Out of memory", "ALLOC_FAILED", "bfc_arena"}
	for range 30 {
		var b strings.Builder
		var want []string
		for n := 1; b.Len() < 1<<20; n++ {
			line := strings.Repeat("out of memor ALLOC_", r.IntN(100))
			if r.IntN(50) == 0 {
				line += words[r.IntN(len(words))] + strings.Repeat("z", r.IntN(3000))
				want = append(want, fmt.Sprintf("%d:%s", n, line))
			}
			b.WriteString(line + "\n")
		}
		require.Equal(t, want, scan(t, strings.NewReader(b.String()), words, nil))
	}
}

// TestLongLines: of a line without an end the parts with a word are seen, in bounded memory.
func TestLongLines(t *testing.T) {
	part := strings.Repeat("x", 1<<20)
	text := "first\n" + part + "memory" + part + "memory" + part + "\nlast memory\n"
	var sizes, numbers []int
	require.NoError(t, logscan.Lines(strings.NewReader(text), []string{"memory"}, func(n int, line []byte) bool {
		require.True(t, bytes.Contains(line, []byte("memory")))
		sizes, numbers = append(sizes, len(line)), append(numbers, n)
		return false
	}))
	assert.Equal(t, []int{2, 2, 3}, numbers)
	for _, size := range sizes {
		assert.LessOrEqual(t, size, logscan.MaxLine)
	}
	assert.Equal(t, len("last memory"), sizes[2])
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nout of memory\r\n\nALLOC_FAILED"), uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		words := []string{"abc", "abcd", "out"}
		var got, want []string
		for i, line := range bytes.Split(text, []byte("\n")) {
			for _, w := range words {
				if bytes.Contains(line, []byte(w)) {
					want = append(want, fmt.Sprintf("%d:%s", i+1, bytes.TrimSuffix(line, []byte("\r"))))
					break
				}
			}
		}
		r := io.Reader(bytes.NewReader(text))
		if size%2 == 1 {
			r = iotest.OneByteReader(r)
		}
		require.NoError(t, logscan.Lines(r, words, func(n int, line []byte) bool {
			got = append(got, fmt.Sprintf("%d:%s", n, line))
			return false
		}))
		if len(text) < logscan.MaxLine {
			assert.Equal(t, want, got)
		}
	})
}

func BenchmarkLines(b *testing.B) {
	line := "(EngineCore pid=418) INFO 03-02 09:26:25 [gpu_model_runner.py:5132] Avg prompt throughput: 123.4 tokens/s, Running: 3 reqs, GPU KV cache usage: 1.2%\n"
	text := []byte(strings.Repeat(line, (64<<20)/len(line)))
	words := []string{"out of memory", "Out of memory", "RESOURCE_EXHAUSTED", "ailed to allocate", "ALLOC_FAILED", "bfc_allocator", "OutOfMemoryError"}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		logscan.Lines(bytes.NewReader(text), words, func(int, []byte) bool { return false })
	}
}
