package python

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLinesOfTables: tables as the versions write them; that whole programs agree is tested in package attach.
func TestLinesOfTables(t *testing.T) {
	assert.Equal(t, 13, lnotabLine([]byte{6, 1, 8, 2, 4, 0xff}, 10, 14))
	assert.Equal(t, 12, lnotabLine([]byte{6, 1, 8, 2, 4, 0xff}, 10, 18))
	assert.Equal(t, 10, lnotabLine([]byte{6, 1}, 10, 5))
	assert.Equal(t, 11, linetableLine([]byte{4, 0, 6, 1}, 10, 4))
	assert.Equal(t, 0, linetableLine([]byte{4, 0, 6, 0x80}, 10, 4), "no line")
	assert.Equal(t, 0, linetableLine([]byte{4, 0}, 10, 4), "beyond the end")
	table := []byte{
		0x81, 0x12, // two instructions of line 10
		0x80 | 11<<3, 0, 5, // one of line 11
		0x80 | 13<<3, 0x03, // one of line 10
		0x80 | 15<<3,                      // one of none
		0x80 | 14<<3, 0x40, 0x02, 1, 1, 1, // one of line 74
	}
	for at, want := range []int{10, 10, 11, 10, 0, 74, 0} {
		assert.Equal(t, want, locationLine(table, 10, 2*at), at)
	}
}

func TestTablesOfNoise(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		table := make([]byte, random.IntN(20))
		for i := range table {
			table[i] = byte(random.Uint32())
		}
		at := random.IntN(200)
		locationLine(table, 10, at)
		linetableLine(table, 10, at)
		lnotabLine(table, 10, at)
	}
}

// TestStrings reads strings out of this process, laid out as Python 3.12 has them.
func TestStrings(t *testing.T) {
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Skip(err)
	}
	p := &Process{memoryView: memoryView{Layouts()[3], memory}, memory: memory}
	defer p.close()
	for _, test := range []struct {
		kind   uint32
		ascii  bool
		text   []byte
		length int
		want   string
		ok     bool
	}{
		{1, true, []byte("train.py"), 8, "train.py", true},
		{1, false, []byte{'G', 'r', 0xf6}, 3, "Grö", true},
		{2, false, []byte{0x61, 0x26, 0x00, 0xd8}, 2, "♡\uFFFD", true},
		{4, false, []byte{0x00, 0xf6, 0x01, 0x00}, 1, "😀", true},
		{3, false, nil, 1, "", false},
		{1, true, nil, maxText + 1, "", false},
	} {
		object := make([]byte, 1<<10)
		binary.LittleEndian.PutUint64(object[16:], uint64(test.length))
		state, at := test.kind<<2|1<<5, 56
		if test.ascii {
			state, at = state|1<<6, 40
		}
		binary.LittleEndian.PutUint32(object[32:], state)
		copy(object[at:], test.text)
		text, ok := p.text(uint64(uintptr(unsafe.Pointer(&object[0]))))
		require.Equal(t, test.ok, ok)
		assert.Equal(t, test.want, text)
	}
	_, ok := p.text(8)
	assert.False(t, ok, "no such address")
}

// TestAnExecThatIsHeardOfLate: the interpreter that a program loaded since is still known then.
func TestAnExecThatIsHeardOfLate(t *testing.T) {
	valid := true
	p := NewProcesses(nil, func(int) { valid = false })
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Skip(err)
	}
	exec := time.Now()
	p.byPID[7] = &Process{memory: memory, found: exec.Add(time.Millisecond)}
	p.Forget(7, exec)
	assert.True(t, valid && p.Get(7) != nil)
	p.Forget(7, exec.Add(time.Second))
	assert.True(t, !valid && p.Get(7) == nil)
}

// TestFreedObjects: a code object that is freed still looks like one. Its lines may be another's by then.
func TestFreedObjects(t *testing.T) {
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Skip(err)
	}
	p := &Process{memoryView: memoryView{Layouts()[3], memory}, memory: memory}
	defer p.close()
	var count uint64
	at := uint64(uintptr(unsafe.Pointer(&count)))
	for value, alive := range map[uint64]bool{1: true, 1 << 20: true, 0xffff_ffff: true, 3<<30 | 0x40<<48: true, 0: false, 0x7f12_3456_7890: false, 0x7_f123_4567: false} {
		count = value
		assert.Equal(t, alive, p.isLive(at), "%#x", value)
	}
	assert.False(t, p.isLive(8), "no such address")
}
