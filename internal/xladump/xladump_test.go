package xladump_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/xladump"
)

// testdata has what JAX 0.10.2 wrote for the gradient of a small network on the CPU, without the settings of its backend.
const testdata = "jit_loss.cpu_after_optimizations"

func text(t testing.TB, suffix string) string {
	b, err := os.ReadFile(filepath.Join("testdata", testdata+suffix))
	require.NoError(t, err)
	return string(b)
}

func read(t *testing.T, texts ...string) *xladump.Report {
	t.Helper()
	var in []io.Reader
	for _, s := range texts {
		in = append(in, strings.NewReader(s))
	}
	r, err := xladump.Read(in...)
	require.NoError(t, err)
	return r
}

// said lists what is live: "dot 1.0 MiB x.py:6", with > before a value that lies in another's memory.
func said(r *xladump.Report) string {
	var all []string
	for _, b := range r.Live {
		s := fmt.Sprintf("%s %v", b.Instruction, b.Bytes)
		if b.Shares != "" {
			s += ">" + b.Shares
		}
		if b.File != "" {
			s += fmt.Sprintf(" %s:%d", b.File, b.Line)
		}
		all = append(all, s)
	}
	return strings.Join(all, ", ")
}

// TestTheTextsOfAProgram: together, in any order, they say what is live at the peak, in bytes and lines.
func TestTheTextsOfAProgram(t *testing.T) {
	all := []string{text(t, "-buffer-assignment.txt"), text(t, "-live-range.txt"), text(t, "-memory-usage-report.txt"), text(t, ".txt")}
	want := "multiply_add_fusion 8.0 MiB train.py:6, wrapped_tanh 8.0 MiB>multiply_add_fusion train.py:6, ynn_fusion 8.0 MiB train.py:6, x.1 4.0 MiB, w__a__.1 2.0 MiB, dot.1 1.0 MiB train.py:6, w__b__.1 1.0 MiB"
	for _, texts := range [][]string{all, {all[3], all[2], all[1], all[0]}, {all[1], all[0], all[3], all[2]}} {
		r := read(t, texts...)
		assert.Equal(t, "jit_loss", r.Module)
		assert.Equal(t, alloc.Bytes(27262992), *r.Total)
		assert.Equal(t, 24*alloc.MiB, *r.Peak, "a fusion writes over its operand")
		assert.Equal(t, want, said(r))
		require.Len(t, r.Allocations, 7)
		assert.Equal(t, xladump.Allocation{Index: 6, Bytes: 16 * alloc.MiB, What: "preallocated-temp", Values: 4}, r.Allocations[0])
		assert.Equal(t, "jit(loss)/transpose(jvp())/add_any", r.Live[0].Operation)
		assert.Equal(t, "w['a']", r.Live[4].Operation)
		assert.Equal(t, "parameter 0, shape |f32[512,1024]|", r.Live[4].What)
	}
}

// TestEachTextAlone says its part, and the rest is unknown.
func TestEachTextAlone(t *testing.T) {
	r := read(t, text(t, "-buffer-assignment.txt"))
	assert.Equal(t, alloc.Bytes(27262992), *r.Total)
	assert.Nil(t, r.Peak)
	assert.Empty(t, r.Live)
	r = read(t, text(t, "-live-range.txt"))
	assert.Nil(t, r.Total)
	assert.Equal(t, 32*alloc.MiB, *r.Peak, "nothing says which values share memory")
	r = read(t, text(t, "-live-range.txt"), "Memory Space: default (color=0)\nTotal bytes: 27262992 (26.00MiB)\n")
	assert.Nil(t, r.Peak, "they add up to more than there is")
	r = read(t, text(t, "-memory-usage-report.txt"))
	assert.Equal(t, alloc.Bytes(27262992), *r.Total)
	assert.Len(t, r.Allocations, 8)
	assert.Equal(t, xladump.Allocation{Index: 1, Bytes: 8 * alloc.MiB, What: "3×f32[2048,1024]", Values: 3}, r.Allocations[1])
	_, err := xladump.Read(strings.NewReader(text(t, ".txt")))
	assert.ErrorIs(t, err, xladump.ErrNoDump, "a module alone says nothing of memory")
	_, err = xladump.Read(strings.NewReader("nothing\n"))
	assert.ErrorIs(t, err, xladump.ErrNoDump)
}

// TestOlderForms: those of XLA before 2025, with addresses, and source lines in the metadata itself.
func TestOlderForms(t *testing.T) {
	r := read(t, `BufferAssignment:
allocation 0: 0x55d1c8c0d5e0, size 8, parameter 0, shape |f32[2]| at ShapeIndex {}:
 value: <3 p @0> (size=8,offset=0): f32[2]{0}
allocation 1: 0x55d1c8c0d6a0, size 16, preallocated-temp:
 value: <4 loop{1} (phi) @0> (size=8,offset=0): f32[2]{0}
 value: <5 add.1 @0> (size=8,offset=8): f32[2]{0}

Total bytes used: 24 (24B)

Used values:
<5 add.1 @0>
 positions:
  add.1
 uses:
  ROOT, operand 0
 from instruction: %add.1 = f32[2]{0} add(f32[2]{0} %p, f32[2]{0} %p), metadata={op_type="add" op_name="jit(f)/add" source_file="/home/x/f.py" source_line=7}
  Live ranges at 4 (peak):
    add.1{}: 8 bytes (cumulative: 8 bytes)
    loop{1}: 8 bytes (cumulative: 16 bytes)
`)
	assert.Equal(t, "add.1 8 B /home/x/f.py:7, loop{1} 8 B", said(r))
	assert.Equal(t, alloc.Bytes(16), *r.Peak)
	assert.Equal(t, alloc.Bytes(24), *r.Total)
	r = read(t, `Total bytes used: 224494040 (214.09MiB)

Allocations sorted by size:

cumulative_size; total_size - cumulative_size; allocation
------------------------------------------------------------------------------
   205.03MiB( 95%);    9.07MiB; allocation 0: size 205.03MiB, preallocated-temp:
   208.90MiB( 97%);    5.19MiB; allocation 1: size 3.88MiB, parameter 0, shape |c64[12,2,36,36,36]| at ShapeIndex {}:
`)
	assert.Equal(t, alloc.Bytes(224494040), *r.Total)
	require.Len(t, r.Allocations, 2)
	assert.Equal(t, "205.0 MiB preallocated-temp 3.9 MiB parameter 0, shape |c64[12,2,36,36,36]|", fmt.Sprint(r.Allocations[0].Bytes, " ", r.Allocations[0].What, " ", r.Allocations[1].Bytes, " ", r.Allocations[1].What))
}

// endless gives a line again and again.
type endless struct {
	line string
	at   int
	left int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := copy(p, e.line[e.at:])
	e.at = (e.at + n) % len(e.line)
	e.left -= n
	return n, nil
}

func TestHostile(t *testing.T) {
	digits := strings.Repeat("9", 400)
	for _, s := range []string{
		"allocation " + digits + ": size " + digits + ", x:\n", "allocation 0: size 99999999999999999, x:\n", " value: <1 x @0> (size=1,offset=1): f32[]\n",
		"Total bytes used: " + digits + "\n", "  Live ranges at 1 (peak):\n    x: " + digits + " bytes\n", "   9(9%);  9.9.9QiB; 1; 1; x\n",
		"FileNames\n1 \"\n1 {file_name_id=1 line=1}\n", strings.Repeat("a", 1<<20), "\x00\x01\xff\n",
	} {
		_, err := xladump.Read(strings.NewReader(s))
		assert.ErrorIs(t, err, xladump.ErrNoDump, "%.50q", s)
	}
	for _, line := range []string{"allocation 0: size 1, x:\n", " value: <1 x @0> (size=1,offset=1): f32[]\n", "   1.0B(9%);  1.0B; 0; 1; x\n", "  Live ranges at 1 (peak):\n    x: 1 bytes\n"} {
		_, err := xladump.Read(&endless{line: line, left: 8 << 20})
		if err != nil && !strings.Contains(err.Error(), xladump.ErrNoDump.Error()) {
			assert.ErrorIs(t, err, bounded.ErrTooLarge, line)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, suffix := range xladump.Suffixes {
		f.Add(text(f, suffix), text(f, "-live-range.txt"))
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		r, err := xladump.Read(strings.NewReader(a), strings.NewReader(b))
		if err != nil {
			return
		}
		if r.Peak != nil && r.Total != nil {
			assert.GreaterOrEqual(t, *r.Peak, alloc.Bytes(0))
		}
		_, err = json.Marshal(r)
		require.NoError(t, err)
	})
}
