package jsonstream

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
)

// Writer writes a JSON object whose members are long arrays, an element at
// a time. After an error it writes nothing more.
type Writer struct {
	w      *bufio.Writer
	Size   int64 // bytes written
	err    error
	sample *Sample // nil to write all
}

// NewWriter returns a Writer. If w is a *Sample, the Writer writes only some elements of each table.
func NewWriter(w io.Writer) *Writer {
	out := &Writer{w: bufio.NewWriterSize(w, 1<<16)}
	if s, ok := w.(*Sample); ok {
		out.sample = s
	}
	return out
}

// Sample is an io.Writer that only measures an object. It guesses the size from some elements of
// each table.
type Sample struct {
	Of   int   // about how many elements of each table are written; at least 1
	Size int64 // of the whole object, once it is flushed
}

// Write throws the text away.
func (*Sample) Write(b []byte) (int, error) { return len(b), nil }

// Bytes writes text as it is.
func (t *Writer) Bytes(b []byte) {
	if t.err == nil {
		_, t.err = t.w.Write(b)
		t.Size += int64(len(b))
	}
}

// Head writes the object's beginning: the members of a struct.
func (t *Writer) Head(members any) {
	text, err := json.Marshal(members)
	if t.fail(err) {
		return
	}
	t.Bytes(text[:len(text)-1])
}

// Member writes the next member of the object: what json.Marshal makes of a value.
func (t *Writer) Member(name string, value any) {
	text, err := json.Marshal(value)
	if t.fail(err) {
		return
	}
	t.Bytes([]byte(",\n\"" + name + "\": "))
	t.Bytes(text)
}

// fail keeps the first error, and reports whether there is one.
func (t *Writer) fail(err error) bool {
	if t.err == nil {
		t.err = err
	}
	return t.err != nil
}

// Step is how many elements of a table of n the sample goes on at once.
func (t *Writer) Step(n int) int {
	if t.sample == nil {
		return 1
	}
	return max(1, n/t.sample.Of)
}

// Table writes the next member of the object: an array, an element a line. put appends an element's JSON form. There may be a
// million of them: appending an event takes 70 ns, the tokens of jsontext's Encoder 350, and its WriteValue another 230.
func Table[E any](t *Writer, name string, elements []E, put func([]byte, E) ([]byte, error)) {
	t.Bytes([]byte(",\n\"" + name + "\": ["))
	before, step := t.Size, t.Step(len(elements))
	separator, comma := []byte("\n"), []byte(",\n")
	var text []byte
	for i := 0; i < len(elements); i += step {
		var err error
		if text, err = put(text[:0], elements[i]); t.fail(err) {
			break
		}
		t.Bytes(separator)
		t.Bytes(text)
		separator = comma
	}
	t.Size += (t.Size - before) * int64(step-1)
	t.Bytes([]byte("\n]"))
}

// AsJSON puts what json.Marshal makes of an element's value.
func AsJSON[E any](value func(E) any) func([]byte, E) ([]byte, error) {
	return func(b []byte, e E) ([]byte, error) {
		text, err := json.Marshal(value(e))
		return append(b, text...), err
	}
}

// Flush writes what is left, and returns the first error of all.
func (t *Writer) Flush() error {
	if t.err == nil {
		t.err = t.w.Flush()
	}
	if t.sample != nil {
		t.sample.Size = t.Size
	}
	return t.err
}

// Marshal returns what write writes.
func Marshal(write func(io.Writer) error) ([]byte, error) {
	var b bytes.Buffer
	err := write(&b)
	return b.Bytes(), err
}
