package archive_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/archive"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

func zipOf(t testing.TB, files, nameBytes int) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := range files {
		w, err := z.CreateHeader(&zip.FileHeader{Name: fmt.Sprintf("%0*d", nameBytes, i)})
		require.NoError(t, err)
		_, err = io.WriteString(w, "text")
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

func TestOpen(t *testing.T) {
	content := zipOf(t, 3, 10)
	z, err := archive.Open(bytes.NewReader(content), int64(len(content)), 3)
	require.NoError(t, err)
	require.Len(t, z.File, 3)
	in, err := z.File[2].Open()
	require.NoError(t, err)
	text, err := io.ReadAll(in)
	require.NoError(t, err)
	assert.Equal(t, "text", string(text))
}

// zeros is a file that is sparse but for its end.
type zeros struct {
	size int64
	end  []byte
}

func (z zeros) ReadAt(p []byte, at int64) (int, error) {
	clear(p)
	if from := z.size - int64(len(z.end)); at+int64(len(p)) > from {
		copy(p[max(0, from-at):], z.end[max(0, at-from):])
	}
	return len(p), nil
}

func TestOpenBoundsTheList(t *testing.T) {
	few := zipOf(t, 2, 10)
	wrapped := zipOf(t, 1<<10, 10)
	at := bytes.LastIndex(wrapped, []byte("PK\x05\x06"))
	binary.LittleEndian.PutUint16(wrapped[at+8:], 1)
	binary.LittleEndian.PutUint16(wrapped[at+10:], 1)
	long := zipOf(t, 16, 60_000)
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"files":             {few, "it says that it has 2 files, want at most 1"},
		"more than it says": {wrapped, "it is truncated, or no ZIP file"},
		"long names":        {long, "it says that it has 16 files"},
		"empty":             {nil, "the end of the ZIP file is missing"},
		"cut":               {few[:len(few)-10], "truncated"},
	} {
		_, err := archive.Open(bytes.NewReader(test.content), int64(len(test.content)), 1)
		assert.ErrorContains(t, err, test.want, name)
	}
	_, err := archive.Open(bytes.NewReader(long), int64(len(long)), 16)
	assert.ErrorIs(t, err, bounded.ErrTooLarge)

	const size = 1 << 41
	var end []byte
	order := binary.LittleEndian
	end = append(end, "PK\x06\x06"...)
	end = order.AppendUint64(end, 44)
	end = append(end, make([]byte, 12)...)
	for _, n := range []uint64{1 << 36, 1 << 36, 46, 0} {
		end = order.AppendUint64(end, n)
	}
	end = append(end, "PK\x06\x07\x00\x00\x00\x00"...)
	end = order.AppendUint64(end, size-56-20-22)
	end = order.AppendUint32(end, 1)
	end = append(end, "PK\x05\x06\x00\x00\x00\x00"+strings.Repeat("\xff", 12)+"\x00\x00"...)
	_, err = archive.Open(zeros{size, end}, size, 1<<10)
	assert.ErrorContains(t, err, "it says that it has 68719476736 files")
}
