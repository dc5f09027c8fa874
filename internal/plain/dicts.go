package plain

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// dict has the keys and kinds of its shape, and the numbers of its values in their order.
type dict struct {
	shape uint32 // index in Data.shapes
	at    uint32 // index of the first value in Data.numbers
}

type others struct {
	keys   []Key
	values map[Key]Value
}

// shape is the keys of a dict in the order in which they were added, and the kinds of their values.
// Dicts that the same code made share a shape, so that each costs little more than its values.
type shape struct {
	number  uint32            // its index in Data.shapes
	members []member          // at most maxKeys, each with another key
	next    map[member]*shape // the shape with one more key
	latest  member            // the one that was last looked up in next
	after   *shape            // and what was found; nil before the first
}

// member is a key and the kind of its value.
type member struct {
	key  Key
	kind Kind
}

// maxKeys is how many keys are looked at one by one. Dicts of a snapshot have fewer.
const maxKeys = 32

func (d *Data) newDict() (Value, error) {
	return Value{Dict, d.dicts.add()}, d.room.Use(dictBytes)
}

// Number returns the number of a dict among those of its Data.
func (v Value) Number() (number int64, ok bool) { return v.n, v.kind == Dict }

// Get returns the value of a key in a dict; if the key was set twice, the last value. ok is false
// if the key is missing or v is no dict.
func (d *Data) Get(v Value, k Key) (value Value, ok bool) {
	if v.kind != Dict {
		return Value{}, false
	}
	e := d.dicts.at(v.n)
	if i, ok := d.shapes[e.shape].find(k); ok {
		return d.member(e, i), true
	}
	if more := d.others[v.n]; more != nil {
		value, ok = more.values[k]
	}
	return value, ok
}

// member returns the i-th value of a dict's shape.
func (d *Data) member(e *dict, i int) Value {
	return Value{d.shapes[e.shape].members[i].kind, *d.numbers.at(int64(e.at) + int64(i))}
}

// Each yields the string keys of a dict and their values, in the order in which they were set.
func (d *Data) Each(v Value) func(yield func(key string, value Value) bool) {
	return func(yield func(string, Value) bool) {
		if v.kind != Dict {
			return
		}
		e := d.dicts.at(v.n)
		for i, m := range d.shapes[e.shape].members {
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

// set sets pairs of keys and values in a dict. It skips keys that are not strings; no snapshot has
// them.
func (d *Data) set(v Value, pairs []Value) error {
	e := d.dicts.at(v.n)
	if e.shape == 0 {
		if s := d.shapeOf(pairs); s != nil {
			return d.fill(e, s, pairs)
		}
	}
	d.keys, d.members = d.keys[:0], d.members[:0]
	for i, m := range d.shapes[e.shape].members {
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

// shapeOf returns the shape that pairs of keys and values have, if dicts before had it and one of each key is set.
func (d *Data) shapeOf(pairs []Value) *shape {
	s := d.shapes[0]
	for i := 0; i+1 < len(pairs); i += 2 {
		m := member{Key(pairs[i].n), pairs[i+1].kind}
		if pairs[i].kind != String {
			return nil
		}
		if s.after == nil || s.latest != m {
			next := s.next[m]
			if next == nil {
				return nil
			}
			s.latest, s.after = m, next
		}
		s = s.after
	}
	return s
}

// fill gives an empty dict a shape, and the values of the pairs that have it.
func (d *Data) fill(e *dict, s *shape, pairs []Value) error {
	if err := d.reserve(e, s); err != nil {
		return err
	}
	for i := range s.members {
		*d.numbers.at(int64(e.at) + int64(i)) = pairs[2*i+1].n
	}
	return nil
}

// reserve gives a dict a shape and room for its values.
func (d *Data) reserve(e *dict, s *shape) error {
	n := len(s.members)
	if n == 0 {
		return nil
	}
	at := d.numbers.addRun(n)
	if at > math.MaxUint32-slab {
		return fmt.Errorf("%w: its dicts have more than %d values", bounded.ErrTooLarge, at)
	}
	e.shape, e.at = s.number, uint32(at)
	return d.room.Use(numberBytes * int64(n))
}

// reshape gives a dict the keys and members of d.
func (d *Data) reshape(e *dict) error {
	before := len(d.shapes[e.shape].members)
	s := d.shapes[0]
	for i, k := range d.keys {
		next, err := d.grow(s, member{k, d.members[i].kind})
		if err != nil {
			return err
		}
		s = next
	}
	if len(d.keys) > before {
		if err := d.reserve(e, s); err != nil {
			return err
		}
	}
	e.shape = s.number
	for i, m := range d.members {
		*d.numbers.at(int64(e.at) + int64(i)) = m.n
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
	next := &shape{number: uint32(len(d.shapes)), members: append(append(make([]member, 0, n), s.members...), m)}
	d.shapes = append(d.shapes, next)
	if s.next == nil {
		s.next = make(map[member]*shape)
	}
	s.next[m] = next
	return next, nil
}
