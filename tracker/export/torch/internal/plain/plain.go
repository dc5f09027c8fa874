// Package plain reads data as Python's pickle and JSON write it: numbers, strings,
// lists and dicts. It runs no code of a file, and takes memory in proportion to it.
package plain

import (
	"math"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// Kind is what a Value is.
type Kind uint8

// The kinds. Tuples and sets are lists, and bytes are strings.
const (
	None Kind = iota
	Bool
	Int
	Float
	String
	List
	Dict
)

var kindNames = [...]string{"None", "a bool", "an integer", "a float", "a string", "a list", "a dict"}

// String names the kind in words: "a list".
func (k Kind) String() string { return kindNames[k] }

// Value is a value of a Data. Two lists or dicts are equal only if they are the same.
type Value struct {
	kind Kind
	n    int64 // the number, the bits of the float, or the place in the Data
}

// Kind returns what the value is.
func (v Value) Kind() Kind { return v.kind }

// IsNone reports whether there is no value.
func (v Value) IsNone() bool { return v.kind == None }

// Int returns an integer's value.
func (v Value) Int() (int64, bool) { return v.n, v.kind == Int }

// Bool returns a bool's value.
func (v Value) Bool() (value, ok bool) { return v.n != 0, v.kind == Bool }

// Float returns a float's value.
func (v Value) Float() (float64, bool) { return math.Float64frombits(uint64(v.n)), v.kind == Float }

func number(n int64) Value  { return Value{Int, n} }
func float(f float64) Value { return Value{Float, int64(math.Float64bits(f))} }
func boolean(b bool) Value {
	if b {
		return Value{Bool, 1}
	}
	return Value{Bool, 0}
}

// Key is a string as a key of dicts.
type Key int32

// Data holds the lists, dicts and strings that values refer to. One that is
// read completely can be read by any goroutine, except for Key.
type Data struct {
	room    *bounded.Reader
	strings []string
	short   map[string]Key
	lists   slabs[[]Value]
	dicts   slabs[dict]
	shapes  *shape // of dicts without keys
	values  []Value
}

// dict has its values in the order of its shape's keys. One with more keys than
// a shape may have keeps the others for itself.
type dict struct {
	shape  *shape
	values []Value
	others *others
}

type others struct {
	keys   []Key
	values map[Key]Value
}

// shape is the keys of dicts in the order in which they were added. Dicts of
// one make share it, so that one costs little more than its values.
type shape struct {
	keys []Key          // at most maxKeys
	next map[Key]*shape // by one more key
}

// maxKeys is how many keys are looked at one by one. Dicts of a snapshot have fewer.
const maxKeys = 32

func newData(r *bounded.Reader) *Data {
	return &Data{room: r, short: make(map[string]Key), shapes: new(shape)}
}

// The bytes that a thing takes, as Use counts them.
const (
	valueBytes  = 16
	listBytes   = 24
	dictBytes   = 40
	stringBytes = 80  // with its place in a map
	shapeBytes  = 256 // and keyBytes for each key
	keyBytes    = 8
	otherBytes  = 96
)

// Use counts memory that is about to be taken for what was read, in bytes. The
// error says that a file of this size has no reason for so much.
func (d *Data) Use(bytes int64) error { return d.room.Use(bytes) }

// Bytes returns the size of the text that was read, unpacked.
func (d *Data) Bytes() int64 { return d.room.Offset() }

// Str returns a string's text; "" of other values.
func (d *Data) Str(v Value) string {
	if v.kind != String {
		return ""
	}
	return d.strings[v.n]
}

// List returns a list's elements; nil of other values. Do not write to it.
func (d *Data) List(v Value) []Value {
	if v.kind != List {
		return nil
	}
	return *d.lists.at(v.n)
}

// Key returns the key of a text, for Get.
func (d *Data) Key(text string) Key {
	if k, ok := d.short[text]; ok {
		return k
	}
	k := Key(len(d.strings))
	d.strings = append(d.strings, text)
	d.short[text] = k
	return k
}

// Get returns the value of a dict's key; of a key that was set twice, the last. ok is
// false if there is none, or the value is no dict.
func (d *Data) Get(v Value, k Key) (value Value, ok bool) {
	if v.kind != Dict {
		return Value{}, false
	}
	e := d.dicts.at(v.n)
	if e.shape == nil {
		return Value{}, false
	}
	if i, ok := e.shape.find(k); ok {
		return e.values[i], true
	}
	if e.others != nil {
		value, ok = e.others.values[k]
	}
	return value, ok
}

// Each yields the string keys of a dict and their values, in the order in which they were set.
func (d *Data) Each(v Value) func(yield func(key string, value Value) bool) {
	return func(yield func(string, Value) bool) {
		if v.kind != Dict {
			return
		}
		e := d.dicts.at(v.n)
		if e.shape == nil {
			return
		}
		for i, k := range e.shape.keys {
			if !yield(d.strings[k], e.values[i]) {
				return
			}
		}
		if e.others == nil {
			return
		}
		for _, k := range e.others.keys {
			if !yield(d.strings[k], e.others.values[k]) {
				return
			}
		}
	}
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
	d.strings = append(d.strings, string(b))
	return Value{String, int64(len(d.strings) - 1)}, d.room.Use(int64(len(b)) + stringBytes)
}

// maxShort is the length of strings that are likely to come again.
const maxShort = 512

func (d *Data) newList() (Value, error) {
	return Value{List, d.lists.add()}, d.room.Use(listBytes)
}

func (d *Data) newDict() (Value, error) {
	return Value{Dict, d.dicts.add()}, d.room.Use(dictBytes)
}

// extend appends to a list.
func (d *Data) extend(list Value, values []Value) error {
	l := d.lists.at(list.n)
	if len(*l) == 0 {
		own, err := d.clone(values)
		*l = own
		return err
	}
	before := cap(*l)
	if len(*l)+len(values) > before { // what append may take
		if err := d.room.Use(valueBytes * int64(max(len(values), before/4))); err != nil {
			return err
		}
	}
	*l = append(*l, values...)
	return nil
}

// clone copies values to where many are kept together.
func (d *Data) clone(values []Value) ([]Value, error) {
	if err := d.room.Use(valueBytes * int64(len(values))); err != nil {
		return nil, err
	}
	if len(values) > slab/4 {
		return append([]Value(nil), values...), nil
	}
	if len(d.values)+len(values) > cap(d.values) {
		d.values = make([]Value, 0, slab)
	}
	from := len(d.values)
	d.values = append(d.values, values...)
	return d.values[from:len(d.values):len(d.values)], nil
}

// set sets pairs of keys and values in a dict. Keys that are no strings, which no
// snapshot has, are left out. It uses pairs for itself.
func (d *Data) set(v Value, pairs []Value) error {
	e := d.dicts.at(v.n)
	first := e.shape == nil
	if first {
		e.shape = d.shapes
	}
	values := pairs[:0] // a value is written at or before the place it was read from
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i].kind != String {
			continue
		}
		k, value := Key(pairs[i].n), pairs[i+1]
		if slot, ok := e.shape.find(k); ok {
			if have := len(e.values); slot < have {
				e.values[slot] = value
			} else {
				values[slot-have] = value
			}
			continue
		}
		if len(e.shape.keys) == maxKeys {
			if err := d.setOther(e, k, value); err != nil {
				return err
			}
			continue
		}
		next, err := d.grow(e.shape, k)
		if err != nil {
			return err
		}
		e.shape = next
		values = append(values, value)
	}
	if first {
		own, err := d.clone(values)
		e.values = own
		return err
	}
	if err := d.room.Use(2 * valueBytes * int64(len(values))); err != nil {
		return err
	}
	e.values = append(e.values, values...)
	return nil
}

func (d *Data) setOther(e *dict, k Key, value Value) error {
	if e.others == nil {
		e.others = &others{values: make(map[Key]Value)}
	}
	if _, ok := e.others.values[k]; !ok {
		e.others.keys = append(e.others.keys, k)
	}
	e.others.values[k] = value
	return d.room.Use(otherBytes)
}

func (s *shape) find(k Key) (int, bool) {
	for i, have := range s.keys {
		if have == k {
			return i, true
		}
	}
	return 0, false
}

// grow returns the shape with one more key.
func (d *Data) grow(s *shape, k Key) (*shape, error) {
	if next, ok := s.next[k]; ok {
		return next, nil
	}
	keys := int64(len(s.keys)) + 1
	if err := d.room.Use(shapeBytes + keyBytes*keys); err != nil {
		return nil, err
	}
	next := &shape{keys: append(append(make([]Key, 0, keys), s.keys...), k)}
	if s.next == nil {
		s.next = make(map[Key]*shape)
	}
	s.next[k] = next
	return next, nil
}

// slab is how many things are kept together.
const slab = 4096

// slabs keeps things of one type, many in a Go object. They do not move.
type slabs[T any] struct {
	all [][]T
}

func (s *slabs[T]) at(i int64) *T { return &s.all[i/slab][i%slab] }

func (s *slabs[T]) add() int64 {
	last := len(s.all) - 1
	if last < 0 || len(s.all[last]) == slab {
		s.all = append(s.all, make([]T, 0, slab))
		last++
	}
	var zero T
	s.all[last] = append(s.all[last], zero)
	return int64(last*slab + len(s.all[last]) - 1)
}
