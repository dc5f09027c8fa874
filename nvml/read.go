package nvml

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
)

// maxLine bounds a line of a file that is read: a header with many devices fits.
const maxLine = 1 << 20

// lineReader puts a file's lines into a store.
type lineReader interface {
	line(text []byte) error
	result() *store // nil before the header
}

// ReadFile reads a recording that a Recorder wrote: CSV if the name ends in .csv, otherwise
// JSON lines. Its size is bounded as a Recorder's is. An incomplete last line, left by a
// recorder that was killed, is ignored. The error names the file, and the line if a line is
// not a sample.
func ReadFile(name string) (Recording, error) {
	f, err := userfile.Open(name)
	if err != nil {
		return Recording{}, fmt.Errorf("reading a recording: %w", err)
	}
	defer f.Close()
	rec, err := readLines(f, newLineReader(strings.EqualFold(filepath.Ext(name), ".csv")))
	if err != nil {
		return Recording{}, fmt.Errorf("%s: %w", name, err)
	}
	return rec, nil
}

func newLineReader(isCSV bool) lineReader {
	if isCSV {
		return &csvReader{}
	}
	return &jsonReader{}
}

func readLines(r io.Reader, lines lineReader) (Recording, error) {
	in := bufio.NewReaderSize(r, maxLine)
	for number := 1; ; number++ {
		text, err := in.ReadSlice('\n')
		if err != nil {
			// Without its newline a line is not whole, whatever it holds.
			if errors.Is(err, io.EOF) {
				break
			}
			return Recording{}, fmt.Errorf("line %d: %w", number, err)
		}
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		if err := lines.line(text); err != nil {
			return Recording{}, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if lines.result() == nil {
		return Recording{}, errors.New("no header: the file is empty, or no recording")
	}
	return lines.result().recording(), nil
}
