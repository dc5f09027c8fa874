package unpack_test

import (
	"archive/zip"
	"bytes"
	"encoding/base64"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/unpack"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

const text = "torch.OutOfMemoryError: CUDA out of memory\n"

// packedByBzip2 is text as bzip2 -9 writes it: the standard library only reads.
const packedByBzip2 = "QlpoOTFBWSZTWc0SjhUAABNfgAAQQAEAEC4CggALQpYgIAAhqAZAB6QoGmhkZMRpaKcN67qq3wvtnvsEPSyiKCRgGDQtMfF3JFOFCQzRKOFQ"

func zstdOf(t testing.TB, text string) []byte {
	w, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	return w.EncodeAll([]byte(text), nil)
}

func zipOf(t *testing.T, names ...string) []byte {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range names {
		member, err := w.Create(name)
		require.NoError(t, err)
		if !strings.HasSuffix(name, "/") {
			_, err = io.WriteString(member, text)
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// open returns a reader of a file with these bytes, and the file.
func open(t *testing.T, packed []byte) (io.ReadCloser, *os.File) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, packed, 0o666))
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return unpack.New(f), f
}

func TestEachPackingIsRead(t *testing.T) {
	bz, err := base64.StdEncoding.DecodeString(packedByBzip2)
	require.NoError(t, err)
	for name, packed := range map[string][]byte{
		"not packed":               []byte(text),
		"zstd":                     zstdOf(t, text),
		"zstd, two frames":         append(zstdOf(t, text[:5]), zstdOf(t, text[5:])...),
		"bzip2":                    bz,
		"zip":                      zipOf(t, "log.txt"),
		"zip of a Mac":             zipOf(t, "a/", "a/log.txt", "__MACOSX/a/._log.txt"),
		"a text like bzip2's":      []byte("BZh9 is no header\n"),
		"a text like an archive's": []byte("PK"),
	} {
		t.Run(name, func(t *testing.T) {
			r, f := open(t, packed)
			got, err := io.ReadAll(r)
			require.NoError(t, err)
			want := text
			if strings.Contains(name, "a text") {
				want = string(packed)
			}
			assert.Equal(t, want, string(got))
			require.NoError(t, r.Close())
			assert.ErrorIs(t, f.Close(), os.ErrClosed)
		})
	}
}

// Checkpoints are archives that readers open themselves, and of several files none is meant more than another.
func TestArchivesThatAreNotUnpacked(t *testing.T) {
	whole := zipOf(t, "log.txt")
	for name, packed := range map[string][]byte{
		"a checkpoint":  zipOf(t, "archive/data.pkl"),
		"several files": zipOf(t, "rank0.log", "rank1.log"),
		"no file":       zipOf(t, "empty/"),
		"torn":          whole[:len(whole)-4],
	} {
		r, _ := open(t, packed)
		got, err := io.ReadAll(r)
		require.NoError(t, err)
		assert.Equal(t, packed, got, name)
		require.NoError(t, r.Close())
	}
	got, err := io.ReadAll(unpack.New(io.NopCloser(bytes.NewReader(whole))))
	require.NoError(t, err)
	assert.Equal(t, whole, got, "a pipe")
}

// The bounds of package bounded hold for what is unpacked here.
func TestUnpackedFilesAreBounded(t *testing.T) {
	zeros := strings.Repeat("\x00", bounded.BasePacked+(8<<20))
	for name, packed := range map[string][]byte{"zstd": zstdOf(t, zeros)} {
		r, _ := open(t, packed)
		in, err := bounded.NewReader(r, 0)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, in)
		assert.ErrorIs(t, err, bounded.ErrTooLarge, name)
		require.NoError(t, r.Close())
	}
}

// A file that ends early, or is damaged, ends with an error.
func TestTornFiles(t *testing.T) {
	packed := zstdOf(t, strings.Repeat(text, 1000))
	for n := 5; n < len(packed); n++ {
		r, _ := open(t, packed[:n])
		_, err := io.ReadAll(r)
		assert.Error(t, err, "the first %d bytes", n)
		require.NoError(t, r.Close())
	}
}

func FuzzNew(f *testing.F) {
	f.Add(zstdOf(f, text))
	bz, _ := base64.StdEncoding.DecodeString(packedByBzip2)
	f.Add(bz)
	f.Fuzz(func(t *testing.T, packed []byte) {
		r := unpack.New(io.NopCloser(bytes.NewReader(packed)))
		defer r.Close()
		in, err := bounded.NewReader(r, 1<<20)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, in)
	})
}
