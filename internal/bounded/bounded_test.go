package bounded_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

func pack(t *testing.T, write func(io.Writer)) []byte {
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	require.NoError(t, err)
	write(zip)
	require.NoError(t, zip.Close())
	return b.Bytes()
}

func open(t *testing.T, text []byte, limit int64) *bounded.Reader {
	r, err := bounded.NewReader(bytes.NewReader(text), limit)
	require.NoError(t, err)
	return r
}

func TestPackedOrNotTheTextIsTheSame(t *testing.T) {
	text := []byte(strings.Repeat("text ", 1000))
	for _, file := range [][]byte{text, pack(t, func(w io.Writer) { w.Write(text) })} {
		r := open(t, file, 0)
		head, err := r.Peek(4)
		require.NoError(t, err)
		assert.Equal(t, "text", string(head))
		require.NoError(t, r.Discard(4))
		c, err := r.ReadByte()
		require.NoError(t, err)
		assert.Equal(t, byte(' '), c)
		rest, err := io.ReadAll(r)
		require.NoError(t, err)
		assert.Equal(t, text[5:], rest)
		assert.EqualValues(t, len(text), r.Offset())
	}
}

func TestABombIsRefusedEarly(t *testing.T) {
	zeros := make([]byte, 1<<20)
	bomb := pack(t, func(w io.Writer) {
		for range 128 {
			w.Write(zeros)
		}
	})
	r := open(t, bomb, 0)
	_, err := io.Copy(io.Discard, r)
	assert.ErrorIs(t, err, bounded.ErrTooLarge)
	assert.ErrorContains(t, err, "unpack to more than")
	assert.LessOrEqual(t, r.Offset(), int64(bounded.BasePacked+bounded.MaxRatio*len(bomb)+1<<16))
}

func TestALimitBoundsTheText(t *testing.T) {
	r := open(t, make([]byte, 3<<20), 2<<20)
	_, err := io.Copy(io.Discard, r)
	assert.ErrorIs(t, err, bounded.ErrTooLarge)
	assert.EqualError(t, err, "too large: the file has more than 2 MiB")
}

func TestMemoryFollowsWhatWasRead(t *testing.T) {
	r := open(t, make([]byte, 1<<20), 16<<20)
	require.NoError(t, r.Use(bounded.Base))
	assert.ErrorIs(t, r.Use(1), bounded.ErrTooLarge, "nothing was read")
	_, err := r.Read(make([]byte, 100))
	require.NoError(t, err)
	assert.NoError(t, r.Use(100*bounded.PerByte-1))
	assert.ErrorContains(t, r.Use(1), "the first 100 bytes of the file hold what takes more than 1 MiB of memory")
	_, err = io.Copy(io.Discard, r)
	require.NoError(t, err)
	assert.NoError(t, r.Use(14<<20))
	assert.ErrorContains(t, r.Use(2<<20), "what the file holds takes more than 16 MiB of memory")
}

func TestTorn(t *testing.T) {
	whole := pack(t, func(w io.Writer) { io.WriteString(w, strings.Repeat("text ", 1000)) })
	_, err := io.ReadAll(open(t, whole[:len(whole)/2], 0))
	assert.ErrorIs(t, bounded.Torn(err), io.ErrUnexpectedEOF)
	_, err = bounded.NewReader(bytes.NewReader(whole[:5]), 0)
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestReadAll(t *testing.T) {
	const most = 3 << 20
	for _, n := range []int{0, 1, 1 << 20, most - 1, most} {
		text := bytes.Repeat([]byte("x"), n)
		got, err := bounded.ReadAll(bytes.NewReader(text), most)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(text, got), n)
	}
	_, err := bounded.ReadAll(bytes.NewReader(make([]byte, most+1)), most)
	require.ErrorIs(t, err, bounded.ErrTooLarge)
	torn := pack(t, func(w io.Writer) { _, _ = io.WriteString(w, strings.Repeat("text ", 1000)) })
	_, err = bounded.ReadAll(open(t, torn[:len(torn)-4], 0), most)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = bounded.ReadAll(iotest.ErrReader(io.ErrClosedPipe), most)
	assert.ErrorIs(t, err, io.ErrClosedPipe)
}

// TestUTF16: PowerShell writes so what is redirected into a file.
func TestUTF16(t *testing.T) {
	const text = "out of memory: größer\r\n\U0001f600 end"
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		file := order.AppendUint16(nil, 0xfeff)
		for _, unit := range utf16.Encode([]rune(strings.Repeat(text, 1000))) {
			file = order.AppendUint16(file, unit)
		}
		for _, file := range [][]byte{file, append(file, 'x'), pack(t, func(w io.Writer) { w.Write(file) })} {
			got, err := io.ReadAll(open(t, file, 0))
			require.NoError(t, err)
			assert.Equal(t, strings.Repeat(text, 1000), string(got))
		}
	}
	for _, other := range []string{"\xff\xfe", "\xff\xfe\x00\x00", "\xff\xfea", "\xfe\xff", "\xff"} {
		got, err := io.ReadAll(open(t, []byte(other), 0))
		require.NoError(t, err)
		assert.Equal(t, other, string(got))
	}
}
