package cli

import (
	"io"
	"os"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/unpack"
	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
)

// readFile is a file that is read, or another source, which counts what was read of it.
type readFile struct {
	io.ReadCloser       // what it unpacks to
	size          int64 // bytes of the file; 0 if that is not known
	done          atomic.Int64
}

// read returns how many bytes of the file were read.
func (f *readFile) read() int64 { return f.done.Load() }

// openFile opens a file, and unpacks what package bounded does not.
func openFile(path string) (*readFile, error) {
	file, err := userfile.Open(path)
	if err != nil {
		return nil, err
	}
	f := new(readFile)
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		f.size = info.Size()
	}
	f.ReadCloser = unpack.New(&countedFile{file, &f.done})
	return f, nil
}

// readFrom reads a source that is no file.
func readFrom(source io.ReadCloser) *readFile {
	f := new(readFile)
	f.ReadCloser = unpack.New(&countedSource{source, &f.done})
	return f
}

type countedFile struct {
	*os.File
	done *atomic.Int64
}

func (f *countedFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.done.Add(int64(n))
	return n, err
}

func (f *countedFile) ReadAt(p []byte, at int64) (int, error) {
	n, err := f.File.ReadAt(p, at)
	f.done.Add(int64(n))
	return n, err
}

type countedSource struct {
	io.ReadCloser
	done *atomic.Int64
}

func (s *countedSource) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.done.Add(int64(n))
	return n, err
}
