// Package plain reads data that Python's pickle or JSON wrote: numbers, strings, lists and dicts.
// It runs no code from the file, and its memory is proportional to the file's size.
package plain

import (
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// Key is a string as a key of dicts.
type Key int32

// Data holds the lists, dicts and strings that values refer to. One that is
// read completely can be read by any goroutine, except for Key.
type Data struct {
	lists
	room    *bounded.Reader
	strings slabs[string]
	short   map[string]Key
	objects slabs[Object]

	dicts   slabs[dict]
	numbers slabs[int64]      // the dicts' values, without their kinds
	others  map[int64]*others // dicts with more keys than a shape may have, by their index in dicts
	shapes  []*shape          // the first is that of an empty dict
	keys    []Key             // keys of the dict being set, and its values
	members []Value
}

func newData(r *bounded.Reader) *Data {
	return &Data{lists: newLists(r), room: r, short: make(map[string]Key), others: make(map[int64]*others), shapes: []*shape{new(shape)}}
}

// The memory that each thing takes, in bytes, as Use counts it.
const (
	dictBytes   = 16 // more than it takes, as for listBytes
	numberBytes = 8
	stringBytes = 80  // with its place in a map
	shapeBytes  = 320 // and memberBytes for each key
	memberBytes = 8
	otherBytes  = 96
)

// Use counts memory, in bytes, before it is taken for decoded data. The error says that a file of
// this size needs no such amount.
func (d *Data) Use(bytes int64) error { return d.room.Use(bytes) }

// Bytes returns the size of the text that was read, unpacked.
func (d *Data) Bytes() int64 { return d.room.Offset() }

// Str returns a string's text; "" of other values.
func (d *Data) Str(v Value) string {
	if v.kind != String {
		return ""
	}
	return *d.strings.at(v.n)
}

// Key returns the key for a text, to pass to Get.
func (d *Data) Key(text string) Key {
	if k, ok := d.short[text]; ok {
		return k
	}
	k := Key(d.add(text))
	d.short[text] = k
	return k
}

func (d *Data) add(text string) int64 {
	at := d.strings.add()
	*d.strings.at(at) = text
	return at
}

// text returns a string value. Short ones are kept once.
func (d *Data) text(b []byte) (Value, error) {
	if len(b) <= maxShort {
		if k, ok := d.short[string(b)]; ok {
			return Value{String, int64(k)}, nil
		}
		if err := d.room.Use(int64(len(b)) + stringBytes); err != nil {
			return Value{}, err
		}
		return Value{String, int64(d.Key(string(b)))}, nil
	}
	return Value{String, d.add(string(b))}, d.room.Use(int64(len(b)) + stringBytes)
}

// maxShort is the largest length of strings that are likely to be repeated.
const maxShort = 512
