package nvml

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
)

// encoder appends a recording's lines in one of the file formats.
type encoder interface {
	begin(b []byte, h header) ([]byte, error)
	row(b []byte, r row) []byte
	note(b []byte, m seriesNote) []byte
}

// file receives samples one by one. Each write is one system call with whole lines in it, so that
// the file can be read at any moment.
type file struct {
	name   string
	f      *userfile.Log
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
	f, err := userfile.CreateLog(name, overwrite)
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

func (f *file) write(rows []row, notes []seriesNote) error {
	if f.failed {
		return nil
	}
	b := f.buffer[:0]
	for _, r := range rows {
		b = f.enc.row(b, r)
	}
	for _, m := range notes {
		b = f.enc.note(b, m)
	}
	return f.flush(b)
}

// flush writes b. After a failed write it writes nothing more.
func (f *file) flush(b []byte) error {
	f.buffer = b
	if _, err := f.f.Write(b); err != nil {
		f.failed = true
		return fmt.Errorf("recording to %s stopped, the rest is in memory only: %w", f.name, err)
	}
	return nil
}

func (f *file) close() error {
	if err := f.f.Close(); err != nil && !f.failed {
		return fmt.Errorf("recording: %w", err)
	}
	return nil // or flush has returned it
}

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

// Read reads a recording as ReadFile does, from any reader. Its first byte says whether it is CSV. The error names the line.
func Read(r io.Reader) (Recording, error) {
	in := bufio.NewReaderSize(r, maxLine)
	head, err := in.Peek(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return Recording{}, err
	}
	return readLines(in, newLineReader(string(head) != "{"))
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

// jsonLines is the format of one JSON object a line. The first line is the
// header. A sample is
//
//	{"time_seconds":0.200113,"device":0,"memory_used_bytes":1729236992}
//
// where device is an index in the header's devices, null a gap, and a key that
// is not there a quantity that was not asked for. A note on a device's series
// is a line with "note", or "ended" if the device was lost; "capacity_bytes" is a
// device's memory.
type jsonLines struct{}

func (jsonLines) begin(b []byte, h header) ([]byte, error) {
	line, err := json.Marshal(h)
	return append(append(b, line...), '\n'), err
}

func (jsonLines) row(b []byte, r row) []byte {
	b = jsonStart(b, r.time, r.device)
	if r.asked&memoryQuants != 0 && r.reading.Scope.String() != "" {
		b = append(append(append(b, `,"scope":"`...), r.reading.Scope...), '"')
	}
	for q := range numQuantities {
		if !r.asked.has(q) {
			continue
		}
		b = append(append(append(b, `,"`...), q.Key()...), `":`...)
		if v, ok := r.reading.Value(q); ok {
			b = strconv.AppendFloat(b, v, 'f', -1, 64)
		} else {
			b = append(b, "null"...)
		}
	}
	return append(b, '}', '\n')
}

func (jsonLines) note(b []byte, m seriesNote) []byte {
	b = jsonStart(b, m.time, m.device)
	if m.capacity > 0 {
		b = strconv.AppendFloat(append(b, `,"capacity_bytes":`...), m.capacity, 'f', -1, 64)
		return append(b, '}', '\n')
	}
	text, _ := json.Marshal(m.text) // a string always has one
	if m.ended {
		b = append(b, `,"ended":`...)
	} else {
		b = append(append(append(b, `,"quantity":"`...), m.quantity.Key()...), `","note":`...)
	}
	return append(append(b, text...), '}', '\n')
}

func jsonStart(b []byte, t time.Duration, device int) []byte {
	b = append(b, `{"time_seconds":`...)
	b = strconv.AppendFloat(b, t.Seconds(), 'f', 6, 64)
	b = append(b, `,"device":`...)
	return strconv.AppendInt(b, int64(device), 10)
}

// jsonReader reads jsonLines back.
type jsonReader struct {
	store  *store
	fields map[string]json.RawMessage // of the last line; the map is used again
}

func (r *jsonReader) line(text []byte) error {
	if r.store == nil {
		return r.header(text)
	}
	clear(r.fields)
	if err := json.Unmarshal(text, &r.fields); err != nil {
		return err
	}
	at, device, err := r.place()
	if err != nil {
		return err
	}
	if capacity := r.fields["capacity_bytes"]; capacity != nil {
		bytes, err := parseValue(MemoryTotal, string(capacity))
		r.store.note(seriesNote{device: device, capacity: bytes})
		return err
	}
	if r.fields["note"] != nil || r.fields["ended"] != nil {
		return r.note(at, device)
	}
	reading := &Reading{Scope: ofDevice}
	if scope := r.fields["scope"]; scope != nil {
		var key string
		err := json.Unmarshal(scope, &key)
		if err == nil {
			reading.Scope, err = scopeOf(key)
		}
		if err != nil {
			return fmt.Errorf("scope: %w", err)
		}
	}
	asked, err := jsonValues(r.fields, reading)
	if err != nil {
		return err
	}
	r.store.add(row{time: at, device: device, asked: asked, reading: reading})
	return nil
}

// place returns a line's time and device.
func (r *jsonReader) place() (at time.Duration, device int, err error) {
	t, err1 := strconv.ParseFloat(string(r.fields["time_seconds"]), 64)
	device, err2 := strconv.Atoi(string(r.fields["device"]))
	if err1 != nil || err2 != nil || device < 0 || device >= len(r.store.tracks) {
		return 0, 0, errors.New("a sample without its time, or of a device that the first line does not list")
	}
	if at, err = seconds(t); err == nil {
		err = r.store.advance(at)
	}
	return at, device, err
}

func (r *jsonReader) note(at time.Duration, device int) error {
	m := seriesNote{time: at, device: device}
	text := r.fields["note"]
	if ended := r.fields["ended"]; ended != nil {
		text, m.ended = ended, true
	}
	if of := r.fields["quantity"]; of != nil {
		var one quantityKeys
		if err := json.Unmarshal(slices.Concat([]byte("["), of, []byte("]")), &one); err != nil {
			return err
		}
		m.quantity = one[0]
	}
	if err := json.Unmarshal(text, &m.text); err != nil {
		return fmt.Errorf("note: %w", err)
	}
	r.store.note(m)
	return nil
}

func (r *jsonReader) header(text []byte) error {
	var h header
	if err := json.Unmarshal(text, &h); err != nil {
		return fmt.Errorf("the first line is not the header of a recording: %w", err)
	}
	if h.Schema != schema {
		return fmt.Errorf("schema %q: this program reads %q", h.Schema, schema)
	}
	if err := checkDevices(len(h.Devices)); err != nil {
		return err
	}
	r.store = newStore(h, defaultPoints)
	return nil
}

func (r *jsonReader) result() *store { return r.store }

func jsonValues(fields map[string]json.RawMessage, into *Reading) (asked quantitySet, err error) {
	for key, raw := range fields {
		q, ok := quantityOfKey(key)
		if !ok {
			continue
		}
		asked |= 1 << q
		if string(raw) == "null" {
			continue
		}
		v, err := parseValue(q, string(raw))
		if err != nil {
			return 0, err
		}
		into.Set(q, v)
	}
	return asked, nil
}

// parseValue reads a value that the quantity can have.
func parseValue(q Quantity, text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || math.IsNaN(v):
		return 0, fmt.Errorf("%s: %q is not a number", q.Key(), text)
	case math.Abs(v) > math.MaxInt64 || v < 0 && q != Temperature:
		return 0, fmt.Errorf("%s: %s cannot be", q.Key(), text)
	}
	return v, nil
}

// seconds converts a number in a file to a duration of at most a century.
func seconds(s float64) (time.Duration, error) {
	if !(s >= 0 && s < 100*365*24*3600) {
		return 0, fmt.Errorf("time_seconds: %v is not a time since the recording's start", s)
	}
	return time.Duration(s * float64(time.Second)), nil
}
