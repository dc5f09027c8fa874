package logscan

import "slices"

// finder finds the first of several words in a text. It is the method of Wu and Manber (1994): three bytes that stand in no
// word let the search go on by nearly the length of the shortest word, so that most bytes are never looked at, however many
// words there are.
type finder struct {
	shortest int
	shift    [1 << blockBits]uint8    // by how much to go on, of the three bytes that end where the search stands
	ending   [1 << blockBits][]string // the words whose first bytes, as many as the shortest has, end with the three bytes
}

// block is how many bytes are looked at together, and blockBits how many bits of them.
const block, blockBits = 3, 14

func blockOf(a, b, c byte) uint { return (uint(a)<<9 ^ uint(b)<<5 ^ uint(c)) & (1<<blockBits - 1) }

func newFinder(words []string) *finder {
	f := &finder{shortest: 255}
	for _, w := range words {
		f.shortest = min(f.shortest, len(w))
	}
	for i := range f.shift {
		f.shift[i] = uint8(f.shortest - block + 1)
	}
	for _, w := range words {
		for i := block - 1; i < f.shortest; i++ {
			p := blockOf(w[i-2], w[i-1], w[i])
			f.shift[p] = min(f.shift[p], uint8(f.shortest-1-i))
		}
		p := blockOf(w[f.shortest-3], w[f.shortest-2], w[f.shortest-1])
		if !slices.Contains(f.ending[p], w) {
			f.ending[p] = append(f.ending[p], w)
		}
	}
	return f
}

// index returns where the first word begins in a text; -1 if there is none.
func (f *finder) index(text []byte) int {
	for i := f.shortest - 1; i < len(text); {
		p := blockOf(text[i-2], text[i-1], text[i])
		if n := f.shift[p]; n > 0 {
			i += int(n)
			continue
		}
		begin := i - f.shortest + 1
		for _, w := range f.ending[p] {
			if len(text)-begin >= len(w) && string(text[begin:begin+len(w)]) == w {
				return begin
			}
		}
		i++
	}
	return -1
}
