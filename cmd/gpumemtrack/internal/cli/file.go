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
	progress      *progress
}

// openFile opens a file, and unpacks what package bounded does not.
func openFile(a *App, path string) (*readFile, error) {
	file, err := userfile.Open(path)
	if err != nil {
		return nil, err
	}
	f := &readFile{progress: a.progress}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		f.size = info.Size()
	}
	f.progress.open(f.size)
	f.ReadCloser = unpack.New(&countedFile{file, f})
	return f, nil
}

// readFrom reads a source that is no file.
func readFrom(a *App, source io.ReadCloser) *readFile {
	f := &readFile{progress: a.progress}
	f.progress.open(0)
	f.ReadCloser = unpack.New(&countedSource{source, f})
	return f
}

// read returns how many bytes of the file were read.
func (f *readFile) read() int64 { return f.done.Load() }

func (f *readFile) count(n int) {
	f.done.Add(int64(n))
	f.progress.read(n)
}

// Close closes the file.
func (f *readFile) Close() error {
	f.progress.close(f.size - f.read())
	return f.ReadCloser.Close()
}

type countedFile struct {
	*os.File
	to *readFile
}

func (f *countedFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.to.count(n)
	return n, err
}

func (f *countedFile) ReadAt(p []byte, at int64) (int, error) {
	n, err := f.File.ReadAt(p, at)
	f.to.count(n)
	return n, err
}

type countedSource struct {
	io.ReadCloser
	to *readFile
}

func (s *countedSource) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.to.count(n)
	return n, err
}
