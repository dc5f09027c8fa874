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

// jsonAppender is an element that there may be a million of: it appends what
// json.Marshal would, several times faster.
type jsonAppender interface {
	appendJSON([]byte) ([]byte, error)
}

// table writes the next member of the object: an array, an element a line.
func table[E any](t *tableWriter, name string, elements iter.Seq[E], value func(E) any) {
	t.bytes([]byte(",\n\"" + name + "\": ["))
	separator := []byte("\n")
	var scratch []byte
	for e := range elements {
		text, err := appendJSON(scratch[:0], value(e))
		scratch = text
		if err != nil && t.err == nil {
			t.err = err
		}
		t.bytes(separator)
		t.bytes(text)
		separator = []byte(",\n")
	}
	t.bytes([]byte("\n]"))
}

func appendJSON(b []byte, value any) ([]byte, error) {
	if own, ok := value.(jsonAppender); ok {
		return own.appendJSON(b)
	}
	text, err := json.Marshal(value)
	return append(b, text...), err
}

func marshal(write func(io.Writer) error) ([]byte, error) {
	var b bytes.Buffer
	err := write(&b)
	return b.Bytes(), err
}
