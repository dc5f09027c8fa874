package nvml

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
)

// encoder appends a recording's lines in one of the file formats.
type encoder interface {
	begin(b []byte, h header) ([]byte, error)
	row(b []byte, r row) []byte
	remark(b []byte, m remark) []byte
}

// file receives samples one by one. Each write is one system call with whole lines in it, so that
// the file can be read at any moment.
type file struct {
	name   string
	f      *os.File
	enc    encoder
	buffer []byte
	failed bool
}

// createFile makes a new file; its name's ending says the format.
func createFile(name string, overwrite bool) (*file, error) {
	enc, err := encoderFor(name)
	if err != nil {
		return nil, err
	}
	f, err := userfile.Create(name, overwrite)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s exists: choose another name, or allow overwriting it: %w", filepath.Clean(name), fs.ErrExist)
	}
	if err != nil {
		return nil, fmt.Errorf("recording to a file: %w", err)
	}
	return &file{name: name, f: f, enc: enc}, nil
}

func encoderFor(name string) (encoder, error) {
	switch ext := strings.ToLower(filepath.Ext(name)); ext {
	case ".jsonl", ".json":
		return jsonLines{}, nil
	case ".csv":
		return new(csvLines), nil
	default:
		return nil, fmt.Errorf("%s: samples are written as .jsonl or .csv, not %q", name, ext)
	}
}

func (f *file) begin(h header) error {
	b, err := f.enc.begin(f.buffer[:0], h)
	if err != nil {
		return fmt.Errorf("recording to %s: %w", f.name, err)
	}
	return f.flush(b)
}

func (f *file) write(rows []row, remarks []remark) error {
	if f.failed {
		return nil
	}
	b := f.buffer[:0]
	for _, r := range rows {
		b = f.enc.row(b, r)
	}
	for _, m := range remarks {
		b = f.enc.remark(b, m)
	}
	return f.flush(b)
}

// flush writes b. After a failed write, which may have left half a line, it writes nothing more.
func (f *file) flush(b []byte) error {
	f.buffer = b
	if _, err := f.f.Write(b); err != nil {
		f.failed = true
		return fmt.Errorf("recording to %s stopped, the rest is in memory only: %w", f.name, err)
	}
	return nil
}

func (f *file) close() error { return f.f.Close() }

// autoName names a file after the date, the process and the GPUs:
// 21-Nov-26-15-04-05-pid42-gpu0-gpumem.jsonl. A second one gets a number.
func autoName(dir string, now time.Time, pid int, devices []Device) string {
	name := now.Format("02-Jan-06-15-04-05")
	if pid != 0 {
		name += fmt.Sprintf("-pid%d", pid)
	}
	if len(devices) == 1 {
		name += fmt.Sprintf("-gpu%d", devices[0].Index)
	} else {
		name += fmt.Sprintf("-%dgpus", len(devices))
	}
	path := filepath.Join(dir, name+"-gpumem.jsonl")
	for n := 2; ; n++ {
		if _, err := os.Lstat(path); err != nil {
			return path
		}
		path = filepath.Join(dir, fmt.Sprintf("%s-gpumem-%d.jsonl", name, n))
	}
}

// schema names the format of a recording's file and its version.
const schema = "gpumemtrack.recording/1"

// maxDevices limits the devices of a file, since each takes memory for every quantity. No machine
// has so many, MIG devices included.
const maxDevices = 256

func checkDevices(n int) error {
	if n > maxDevices {
		return fmt.Errorf("more than %d devices", maxDevices)
	}
	return nil
}

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
