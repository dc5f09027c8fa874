// Package plain reads data that Python's pickle or JSON wrote: numbers, strings, lists and dicts.
// It runs no code from the file, and its memory is proportional to the file's size.
package plain

import (
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// Kind says what a Value is.
type Kind uint8

// The kinds. Tuples and sets are lists, and bytes are strings. Only ReadObjects returns the last two.
const (
	None Kind = iota
	Bool
	Int
	Float
	String
	List
	Dict
	Global // the name of a class or function
	Called // what a call would make: an Object
)

var kindNames = [...]string{"None", "a bool", "an integer", "a float", "a string", "a list", "a dict", "a name of code", "an object"}

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
	strings slabs[string]
	short   map[string]Key
	lists   slabs[[]Value]
	values  []Value // values of lists, many in one slice
	dicts   slabs[dict]
	objects slabs[Object]
	numbers slabs[int64]      // the dicts' values, without their kinds
	others  map[int64]*others // dicts with more keys than a shape may have, by their index in dicts
	shapes  *shape            // the shape of an empty dict
	keys    []Key             // keys of the dict being set, and its values
	members []Value
}

// dict has the keys and kinds of its shape, and the numbers of its values in their order.
type dict struct {
	shape *shape
	at    int64 // index of the first value in Data.numbers
}

type others struct {
	keys   []Key
	values map[Key]Value
}

// shape is the keys of a dict in the order in which they were added, and the kinds of their values.
// Dicts that the same code made share a shape, so that each costs little more than its values.
type shape struct {
	members []member          // at most maxKeys
	next    map[member]*shape // the shape with one more key
}

// member is a key and the kind of its value.
type member struct {
	key  Key
	kind Kind
}

// maxKeys is how many keys are looked at one by one. Dicts of a snapshot have fewer.
const maxKeys = 32

func newData(r *bounded.Reader) *Data {
	return &Data{room: r, short: make(map[string]Key), shapes: new(shape), others: make(map[int64]*others)}
}

// The memory that each thing takes, in bytes, as Use counts it.
const (
	valueBytes  = 16
	listBytes   = 24
	dictBytes   = 16
	numberBytes = 8
	stringBytes = 80  // with its place in a map
	shapeBytes  = 256 // and memberBytes for each key
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

// List returns a list's elements, or nil if the value is no list. Do not write to the slice.
func (d *Data) List(v Value) []Value {
	if v.kind != List {
		return nil
	}
	return *d.lists.at(v.n)
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

// Get returns the value of a key in a dict; if the key was set twice, the last value. ok is false
// if the key is missing or v is no dict.
func (d *Data) Get(v Value, k Key) (value Value, ok bool) {
	if v.kind != Dict {
		return Value{}, false
	}
	e := d.dicts.at(v.n)
	if i, ok := e.shape.find(k); ok {
		return d.member(e, i), true
	}
	if more := d.others[v.n]; more != nil {
		value, ok = more.values[k]
	}
	return value, ok
}

// member returns the i-th value of a dict's shape.
func (d *Data) member(e *dict, i int) Value {
	return Value{e.shape.members[i].kind, *d.numbers.at(e.at + int64(i))}
}

// Each yields the string keys of a dict and their values, in the order in which they were set.
func (d *Data) Each(v Value) func(yield func(key string, value Value) bool) {
	return func(yield func(string, Value) bool) {
		if v.kind != Dict {
			return
		}
		e := d.dicts.at(v.n)
		for i, m := range e.shape.members {
			if !yield(*d.strings.at(int64(m.key)), d.member(e, i)) {
				return
			}
		}
		more := d.others[v.n]
		if more == nil {
			return
		}
		for _, k := range more.keys {
			if !yield(*d.strings.at(int64(k)), more.values[k]) {
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
	return Value{String, d.add(string(b))}, d.room.Use(int64(len(b)) + stringBytes)
}

// maxShort is the largest length of strings that are likely to be repeated.
const maxShort = 512

func (d *Data) newList() (Value, error) {
	return Value{List, d.lists.add()}, d.room.Use(listBytes)
}

func (d *Data) newDict() (Value, error) {
	v := Value{Dict, d.dicts.add()}
	d.dicts.at(v.n).shape = d.shapes
	return v, d.room.Use(dictBytes)
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

// set sets pairs of keys and values in a dict. It skips keys that are not strings; no snapshot has
// them.
func (d *Data) set(v Value, pairs []Value) error {
	e := d.dicts.at(v.n)
	d.keys, d.members = d.keys[:0], d.members[:0]
	for i, m := range e.shape.members {
		d.keys, d.members = append(d.keys, m.key), append(d.members, d.member(e, i))
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i].kind != String {
			continue
		}
		k, value := Key(pairs[i].n), pairs[i+1]
		switch at := slices.Index(d.keys, k); {
		case at >= 0:
			d.members[at] = value
		case len(d.keys) < maxKeys:
			d.keys, d.members = append(d.keys, k), append(d.members, value)
		default:
			if err := d.setOther(v, k, value); err != nil {
				return err
			}
		}
	}
	return d.reshape(e)
}

// reshape gives a dict the keys and members of d.
func (d *Data) reshape(e *dict) error {
	before := len(e.shape.members)
	e.shape = d.shapes
	for i, k := range d.keys {
		next, err := d.grow(e.shape, member{k, d.members[i].kind})
		if err != nil {
			return err
		}
		e.shape = next
	}
	if len(d.keys) > before {
		if err := d.room.Use(numberBytes * int64(len(d.keys))); err != nil {
			return err
		}
		e.at = d.numbers.addRun(len(d.keys))
	}
	for i, m := range d.members {
		*d.numbers.at(e.at + int64(i)) = m.n
	}
	return nil
}

func (d *Data) setOther(v Value, k Key, value Value) error {
	o := d.others[v.n]
	if o == nil {
		o = &others{values: make(map[Key]Value)}
		d.others[v.n] = o
	}
	if _, ok := o.values[k]; !ok {
		o.keys = append(o.keys, k)
	}
	o.values[k] = value
	return d.room.Use(otherBytes)
}

func (s *shape) find(k Key) (int, bool) {
	for i, m := range s.members {
		if m.key == k {
			return i, true
		}
	}
	return 0, false
}

// grow returns the shape with one more member.
func (d *Data) grow(s *shape, m member) (*shape, error) {
	if next, ok := s.next[m]; ok {
		return next, nil
	}
	n := int64(len(s.members)) + 1
	if err := d.room.Use(shapeBytes + memberBytes*n); err != nil {
		return nil, err
	}
	next := &shape{members: append(append(make([]member, 0, n), s.members...), m)}
	if s.next == nil {
		s.next = make(map[member]*shape)
	}
	s.next[m] = next
	return next, nil
}

// slab is how many things are kept together.
const slab = 4096

// slabs keeps things of one type, many in a Go object. They do not move.
type slabs[T any] struct {
	all [][]T
}

func (s *slabs[T]) at(i int64) *T { return &s.all[i/slab][i%slab] }

// len returns how many elements were added. They must have been added one by one.
func (s *slabs[T]) len() uint64 {
	if len(s.all) == 0 {
		return 0
	}
	return uint64((len(s.all)-1)*slab + len(s.all[len(s.all)-1]))
}

func (s *slabs[T]) add() int64 { return s.addRun(1) }

// addRun adds n things, at most slab, one after the other, and returns the place of the first.
func (s *slabs[T]) addRun(n int) int64 {
	last := len(s.all) - 1
	if last < 0 || len(s.all[last])+n > slab {
		s.all = append(s.all, make([]T, 0, slab))
		last++
	}
	at := len(s.all[last])
	s.all[last] = s.all[last][:at+n]
	return int64(last*slab + at)
}
