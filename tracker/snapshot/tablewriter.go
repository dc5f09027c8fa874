package snapshot

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
)

// tableWriter writes a JSON object whose members are long arrays, an element at
// a time. After an error it writes nothing more.
type tableWriter struct {
	w    *bufio.Writer
	size int64 // of what was written
	err  error
	// sample, unless it is 0, is how many elements of a table are looked at to guess
	// the size of all.
	sample int
}

func newTableWriter(w io.Writer) *tableWriter { return &tableWriter{w: bufio.NewWriterSize(w, 1<<16)} }

func (t *tableWriter) bytes(b []byte) {
	if t.err == nil {
		_, t.err = t.w.Write(b)
		t.size += int64(len(b))
	}
}

// head writes the object's beginning: the members of a struct.
func (t *tableWriter) head(members any) {
	text, err := json.Marshal(members)
	if t.fail(err) {
		return
	}
	t.bytes(text[:len(text)-1])
}

// member writes the next member of the object: what json.Marshal makes of a value.
func (t *tableWriter) member(name string, value any) {
	text, err := json.Marshal(value)
	if t.fail(err) {
		return
	}
	t.bytes([]byte(",\n\"" + name + "\": "))
	t.bytes(text)
}

// fail keeps the first error, and reports whether there is one.
func (t *tableWriter) fail(err error) bool {
	if t.err == nil {
		t.err = err
	}
	return t.err != nil
}

// step is how many elements of a table of n the sample goes on at once.
func (t *tableWriter) step(n int) int {
	if t.sample == 0 {
		return 1
	}
	return max(1, n/t.sample)
}

// table writes the next member of the object: an array, an element a line. put
// appends an element's JSON form. There may be a million of them: what allocates
// nothing is several times faster than json.Marshal.
func table[E any](t *tableWriter, name string, elements []E, put func([]byte, E) ([]byte, error)) {
	t.bytes([]byte(",\n\"" + name + "\": ["))
	before, step := t.size, t.step(len(elements))
	separator, comma := []byte("\n"), []byte(",\n")
	var text []byte
	for i := 0; i < len(elements); i += step {
		var err error
		if text, err = put(text[:0], elements[i]); t.fail(err) {
			break
		}
		t.bytes(separator)
		t.bytes(text)
		separator = comma
	}
	t.size += (t.size - before) * int64(step-1)
	t.bytes([]byte("\n]"))
}

// asJSON puts what json.Marshal makes of an element's value.
func asJSON[E any](value func(E) any) func([]byte, E) ([]byte, error) {
	return func(b []byte, e E) ([]byte, error) {
		text, err := json.Marshal(value(e))
		return append(b, text...), err
	}
}

// flush writes what is left, and returns the first error of all.
func (t *tableWriter) flush() error {
	if t.err == nil {
		t.err = t.w.Flush()
	}
	return t.err
}

func marshal(write func(io.Writer) error) ([]byte, error) {
	var b bytes.Buffer
	err := write(&b)
	return b.Bytes(), err
}
