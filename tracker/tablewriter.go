package tracker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"iter"
)

// tableWriter writes a JSON object whose members are long arrays, an element at
// a time. After an error it writes nothing more.
type tableWriter struct {
	w   *bufio.Writer
	err error
}

func (t *tableWriter) bytes(b []byte) {
	if t.err == nil {
		_, t.err = t.w.Write(b)
	}
}

// table writes the next member of the object: an array, an element a line. put
// appends an element's JSON form. There may be a million of them: what allocates
// nothing is several times faster than json.Marshal.
func table[E any](t *tableWriter, name string, elements iter.Seq[E], put func([]byte, E) ([]byte, error)) {
	t.bytes([]byte(",\n\"" + name + "\": ["))
	separator, comma := []byte("\n"), []byte(",\n")
	var scratch []byte
	for e := range elements {
		text, err := put(scratch[:0], e)
		scratch = text
		if err != nil && t.err == nil {
			t.err = err
		}
		t.bytes(separator)
		t.bytes(text)
		separator = comma
	}
	t.bytes([]byte("\n]"))
}

// asJSON puts what json.Marshal makes of an element's value.
func asJSON[E any](value func(E) any) func([]byte, E) ([]byte, error) {
	return func(b []byte, e E) ([]byte, error) {
		text, err := json.Marshal(value(e))
		return append(b, text...), err
	}
}

func newTableWriter(w io.Writer) *tableWriter { return &tableWriter{w: bufio.NewWriterSize(w, 1<<16)} }

func marshal(write func(io.Writer) error) ([]byte, error) {
	var b bytes.Buffer
	err := write(&b)
	return b.Bytes(), err
}
