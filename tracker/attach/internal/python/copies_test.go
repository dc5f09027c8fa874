package python

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// a312 is a copy of a code object of Python 3.12 at address 4096, as a process makes it.
func a312(file, name string, lines []byte, copiedLines int) copied {
	c := copied(make([]byte, CopySize(copiedLines)))
	put := func(at int, w uint64) { binary.NativeEndian.PutUint64(c[at:], w) }
	put(CopyCode, 4096)
	put(CopyVersion, 0x030c)
	for part, size := range MostOf {
		if part == int(Lines) {
			size = copiedLines
		}
		put(CopyParts+16*part, uint64(4096*(part+1)))
		put(CopyParts+16*part+8, uint64(size))
	}
	object := c[Object.At():]
	for at, part := range map[int]Part{112: File, 128: Name, 136: Lines} {
		binary.LittleEndian.PutUint64(object[at:], uint64(4096*(int(part)+1)))
	}
	object[68] = 10
	for part, text := range map[Part]string{File: file, Name: name} {
		to := c[part.At():][:MostOf[part]]
		binary.LittleEndian.PutUint64(to[16:], uint64(len(text)))
		to[32] = 1<<2 | 1<<5 | 1<<6
		copy(to[40:], text)
	}
	binary.LittleEndian.PutUint64(c[Lines.At()+16:], uint64(len(lines)))
	copy(c[Lines.At()+32:], lines)
	return c
}

// TestLearnedFunctions: a function has the names that its code object had when it was copied, and never those of another at its address.
func TestLearnedFunctions(t *testing.T) {
	const gone = math.MaxInt32 // no such process
	p := NewProcesses(nil, func(int) {})
	named := func(word uint64) mem.Frame {
		words := []uint64{word, uint64(192)<<32 | 10}
		p.Get(gone).Number(words)
		return p.Get(gone).Runs(words)[0][0]
	}
	table := []byte{0x80 | 13<<3, 0x02} // a line further
	p.AddCode(gone, a312("train.py", "layer", table, 64))
	assert.Equal(t, mem.Frame{Function: "layer", File: "train.py", Line: 11}, named(4096))
	p.AddCode(gone, a312("train.py", "other", table, 64))
	assert.Equal(t, mem.Frame{Function: "other", File: "train.py", Line: 11}, named(4096))

	unknown := mem.Frame{Function: "(a Python function that could not be read)"}
	assert.Equal(t, unknown, named(4096|NotCopied), "another, that nothing is known of")
	assert.Equal(t, unknown, named(8192))
	p.AddCode(gone, a312("train.py", "layer", table, 64))
	assert.Equal(t, "layer", named(4096).Function)
	long := strings.Repeat("/folder", 100)
	p.AddCode(gone, a312(long, "long", table, 64))
	assert.Equal(t, mem.Frame{Function: "long", File: long[:512-40] + "…", Line: 11}, named(4096), "as much as was copied, and no longer the former")
	overlaps := a312("train.py", "layer", table, 64)
	put := func(at int, w uint64) { binary.NativeEndian.PutUint64(overlaps[at:], w) }
	put(CopyParts+16*int(File), 4096*uint64(Name+1)-100) // the file's name ends in the function's
	put(Object.At()+112, 4096*uint64(Name+1)-100)
	put(CopyParts+16*int(File)+8, 100+44)
	p.AddCode(gone, overlaps)
	assert.Equal(t, "layer", named(4096).Function)
	p.AddCode(gone, a312("train.py", "layer", table, 64)[:CopyText+20])
	assert.Equal(t, unknown, named(4096), "of which nothing came")

	lines := append(make([]byte, 0, 400), table...)
	for range 199 {
		lines = append(lines, 0x80, 0)
	}
	p.AddCode(gone, a312("train.py", "long", lines, 64))
	assert.Equal(t, 11, named(4096).Line)
	words := []uint64{4096, uint64(192+300)<<32 | 10}
	p.Get(gone).Number(words)
	assert.Equal(t, mem.Frame{Function: "long", File: "train.py"}, p.Get(gone).Runs(words)[0][0], "the table was cut before that line")
}

// TestNumbersAreOfFunctions: what is the same function keeps its number, wherever its code object lies.
func TestNumbersAreOfFunctions(t *testing.T) {
	p := new(Process)
	first := p.keep(16, &function{content: content{name: "f"}, lines: []byte{1}})
	assert.Equal(t, first, p.keep(32, &function{content: content{name: "f"}, lines: []byte{1}}))
	assert.NotEqual(t, first, p.keep(16, &function{content: content{name: "f"}, lines: []byte{2}}))
}

// TestManyFunctions: a function that is used stays, however many others there are. Those that are not used are dropped.
func TestManyFunctions(t *testing.T) {
	p := new(Process)
	words := func(code uint64) []uint64 {
		all := []uint64{code, 0}
		p.Number(all)
		return all
	}
	p.keep(16, &function{content: content{name: "used"}})
	for i := range uint64(5 * maxKnown) {
		p.keep(32+16*i, &function{content: content{name: "other", first: int(i)}})
		if i%1000 == 0 {
			require.Equal(t, "used", p.Runs(words(16))[0][0].Function)
		}
	}
	require.LessOrEqual(t, len(p.functions.recent.byCode)+len(p.functions.older.byCode), 2*maxKnown)
	require.LessOrEqual(t, len(p.functions.recent.byID)+len(p.functions.older.byID), 2*maxKnown)
	require.Equal(t, "(a Python function that could not be read)", p.Runs(words(32))[0][0].Function)
	require.Equal(t, "other", p.Runs(words(32 + 16*(5*maxKnown-1)))[0][0].Function)
}

// TestAnotherObjectAtTheAddress: what was not copied is read later, if the code object is still the same.
func TestAnotherObjectAtTheAddress(t *testing.T) {
	first, second := a312("train.py", "layer", nil, 64), a312("train.py", "layer", nil, 64)
	second[Object.At()+92]++ // co_version
	first[Object.At()], second[Object.At()] = 1, 1
	p := &Process{memoryView: memoryView{Layouts()[3], first}}
	digest, ok := p.digest(4096)
	require.True(t, ok)
	_, ok = p.functionNow(4096, digest)
	require.True(t, ok)
	p.from = second
	_, ok = p.functionNow(4096, digest)
	require.False(t, ok)
}

// TestCopiesOfNoise: a process may say anything.
func TestCopiesOfNoise(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	p := NewProcesses(nil, func(int) {})
	for range 2000 {
		c := a312("train.py", "layer", nil, 64)
		for range 1 + random.IntN(8) {
			c[CopyCode+random.IntN(len(c)-CopyCode)] = byte(random.Uint32())
		}
		for range random.IntN(3) {
			binary.NativeEndian.PutUint64(c[CopyParts+8*random.IntN(2*int(parts)):], random.Uint64()>>random.IntN(64))
		}
		require.NotPanics(t, func() { p.AddCode(math.MaxInt32, c[:random.IntN(len(c)+1)]) })
	}
}
