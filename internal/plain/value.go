package plain

import "math"

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

// valueBytes is the memory that a Value takes, as bounded.Reader.Use counts it.
const valueBytes = 16
