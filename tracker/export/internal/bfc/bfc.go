// Package bfc reads what the allocators of TensorFlow, XLA (JAX) and ONNX Runtime print when memory
// runs out: every chunk of their pool, in a log among the program's other output. All three use the
// same scheme, best fit with coalescing, but their text has changed every few releases.
//
// A log has no call stacks. It says what was requested, and which chunks are in use or free at
// which addresses. So a [Failure] can tell why a request failed: too little memory was free, or it
// was free in pieces, and then what lies between them. What a log lacks, for example because it was
// cut, stays unknown and is named.
package bfc

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// ErrNoFailure is returned for a text in which no BFC allocator says that it ran out of memory.
var ErrNoFailure = errors.New("no BFC allocator says in it that it ran out of memory")

// Read finds the failures in a log, packed by gzip or not. Lines of the log may have anything
// before them: times, levels, a progress bar, quotes of a notebook. The dump shows the first
// failure that lists chunks, with the chunks in use as its buffers; it is nil if none does. The
// usage is what was in use at that failure or, if none lists chunks, at the first. The error is
// ErrNoFailure, or says that the file is torn or too large.
func Read(r io.Reader) ([]*Failure, *snapshot.Dump, *export.Usage, error) {
	failures, err := read(r)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, f := range failures {
		if len(f.chunks) > 0 {
			d := f.dump()
			return failures, d, export.FromDump(d), nil
		}
	}
	return failures, nil, failures[0].usage(), nil
}

func read(r io.Reader) ([]*Failure, error) {
	in, err := bounded.NewReader(r, 0)
	if err != nil {
		return nil, err
	}
	s := scanner{use: in.Use}
	lines := lineReader{r: bufio.NewReaderSize(in, 1<<16)}
	for err == nil {
		var line string
		if line, err = lines.next(); line != "" {
			s.number = lines.number
			if err := s.line(line); err != nil {
				return nil, fmt.Errorf("read log: %w", err)
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read log: %w", bounded.Torn(err))
	}
	s.end()
	if len(s.failures) == 0 && s.warnings > 0 {
		return nil, fmt.Errorf("%w: of its %d warnings each says that it is no failure", ErrNoFailure, s.warnings)
	}
	if len(s.failures) == 0 {
		return nil, ErrNoFailure
	}
	return s.failures, nil
}

// maxLine is how much of a line is looked at.
const maxLine = 1 << 14

// lineReader reads the lines of a log. A progress bar goes back to the beginning of its line and writes over it: what
// follows is read apart.
type lineReader struct {
	r      *bufio.Reader
	number int // number of the line read last
	ended  bool
	text   []byte
}

// next returns the next piece of a line, "" of an empty one, with the error after it.
func (l *lineReader) next() (string, error) {
	if l.ended || l.number == 0 {
		l.number, l.ended = l.number+1, false
	}
	for l.text = l.text[:0]; ; {
		c, err := l.r.ReadByte()
		if err != nil || c == '\r' || c == '\n' {
			l.ended = c == '\n'
			return string(l.text), err
		}
		if len(l.text) < maxLine {
			l.text = append(l.text, c)
		}
	}
}
