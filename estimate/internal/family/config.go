package family

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// ErrUnknown is the error for a model that no family describes.
var ErrUnknown = errors.New("unknown architecture")

// Error says what is wrong with the settings of a model.
type Error struct {
	Where  string // the key; may be empty
	Reason string
	Err    error // the cause; may be nil
}

// Error returns where the error is and the reason.
func (e *Error) Error() string {
	switch {
	case e.Err == nil:
		return e.Where + ": " + e.Reason
	case e.Reason == "":
		return e.Where + ": " + e.Err.Error()
	}
	return e.Where + ": " + e.Reason + ": " + e.Err.Error()
}

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.Err }

// Config holds the settings of a config.json, or of a part of one. A missing key has the default of
// transformers (defaults.json); a key that is null has no value.
//
// It keeps the first error. Reading goes on after it with numbers that do no harm, so that callers
// need not check each key.
type Config struct {
	known
	table          *Table // in which parts find their families
	part           bool
	class          class
	names          map[string]string // of a key's other names, the usual one
	raw            json.RawMessage
	file, defaults map[string]json.RawMessage // both with the usual names of the keys
	origins        map[string][]string        // by its usual name, the names that the file has for a key
	replaced       map[string]bool            // keys that a reader set
	err            *error                     // shared by the whole and its parts
	reading        *reading                   // shared too
	object         *object                    // nil where the file has no such part
}

// members returns the members of the text by the names that it has.
func (c *Config) members() map[string]json.RawMessage {
	var m map[string]json.RawMessage
	_ = json.Unmarshal(c.raw, &m) // newConfig kept the error
	return m
}

// newConfig reads the settings of a text.
func newConfig(t *Table, k known, text json.RawMessage, err *error) *Config {
	c := &Config{known: k, table: t, raw: text, err: err, class: classOf(k.Name), origins: map[string][]string{}, replaced: map[string]bool{}}
	c.names = c.class.usualNames(k.Keys)
	c.defaults = c.class.renamed(c.class.Defaults, c.names)
	if e := strictjson.Unmarshal(text, &c.file); e != nil {
		c.keep("", e)
	}
	for key := range c.file {
		usual := usualName(c.names, key)
		c.origins[usual] = append(c.origins[usual], key)
	}
	c.file = c.class.renamed(c.file, c.names)
	if !k.PerLayer {
		c.samePerLayer()
	}
	return c
}

// Component returns the settings of a part, such as those of the text in a model of images and
// text. name is its type; "" means the one in the part itself. A part that is missing has the
// defaults of its type.
func (c *Config) Component(key, name string) *Config {
	text, usual, given := c.Value(key), c.class.Parts[key], c.Given(key)
	if text != nil && text[0] != '{' {
		c.Fail(key, "it is no object")
		text = json.RawMessage("{}")
	}
	switch {
	case text != nil:
	case usual.With != nil:
		text = usual.With
	default:
		text = json.RawMessage("{}")
	}
	if name == "" {
		name = c.typeIn(text, usual.Type)
	}
	p := c.of(text, name)
	if given && c.object != nil {
		p.object = c.reading.at(c.object.path+key+".", p.class.within(usual), p.members())
	}
	return p
}

// Itself returns all settings, read as those of the type name.
func (c *Config) Itself(name string) *Config {
	p := c.of(c.raw, name)
	p.object = c.object
	return p
}

// typeIn returns the model_type in a text, or usual if it has none.
func (c *Config) typeIn(text json.RawMessage, usual string) string {
	var named struct {
		Type string `json:"model_type"`
	}
	c.keep("", strictjson.Unmarshal(text, &named))
	return cmp.Or(named.Type, usual)
}

// of returns the settings of a part whose type has this name.
func (c *Config) of(text json.RawMessage, name string) *Config {
	k := c.table.types[name]
	k.Name = name
	p := newConfig(c.table, k, text, c.err)
	p.part, p.reading = true, c.reading
	if c.reading != nil {
		c.reading.types = append(c.reading.types, name)
	}
	delete(p.file, "architectures")
	return p
}

// keep keeps err if it is the first error.
func (c *Config) keep(where string, err error) {
	if err != nil && *c.err == nil {
		*c.err = &Error{Where: where, Err: err}
	}
}

// Check checks a model's numbers against each other, unless there was an error before.
func (c *Config) Check(where string, a *Model) {
	if *c.err == nil {
		c.keep(where, a.check())
	}
}

// Fail keeps an error about a key's value.
func (c *Config) Fail(key, format string, args ...any) {
	if *c.err == nil {
		*c.err = &Error{Where: key, Reason: fmt.Sprintf(format, args...)}
	}
}

// Unknown keeps the error that a setting asks for an architecture that is not known.
func (c *Config) Unknown(key, value string) {
	if *c.err == nil {
		*c.err = &Error{Where: key, Reason: fmt.Sprintf("%s is not supported for %q", strictjson.Shorten(value), c.Name), Err: ErrUnknown}
	}
}

// Value returns the text of a key's value, or nil.
func (c *Config) Value(key string) json.RawMessage {
	key = usualName(c.names, key)
	c.markRead(key)
	v, ok := c.file[key]
	if !ok {
		v = c.defaults[key]
	}
	if string(v) == "null" {
		return nil
	}
	return v
}

// markRead records that a reader looked at a key, unless it looks at what a reader set.
func (c *Config) markRead(usual string) {
	if c.object == nil || c.replaced[usual] {
		return
	}
	for _, key := range c.origins[usual] {
		c.object.read[key] = true
	}
}

// Harmless says that keys bear on no size in this family, though they may in others.
func (c *Config) Harmless(keys ...string) {
	for _, key := range keys {
		c.markRead(usualName(c.names, key))
	}
}

// Follows keeps an error if a key that transformers computes from others has another value than n.
// Files that it saves have such keys.
func (c *Config) Follows(key string, n int) {
	if got := c.Whole(key, n); got != n {
		c.Unknown(key, strconv.Itoa(got)+" where other keys lead to "+strconv.Itoa(n))
	}
}

// Decode decodes a key's value. It returns false if there is none, or if it is wrong.
func (c *Config) Decode(key string, to any) bool {
	v := c.Value(key)
	if v == nil {
		return false
	}
	err := strictjson.Unmarshal(v, to)
	switch {
	case err == nil:
		return true
	case c.part:
		c.keep("", fmt.Errorf("%w, within %q", err, "/"+key))
	case *c.err == nil:
		*c.err = &Error{Reason: "it is not the JSON of a config.json", Err: fmt.Errorf("%w, within %q", err, "/"+key)}
	}
	return false
}

// Has reports whether a key has a value.
func (c *Config) Has(key string) bool { return c.Value(key) != nil }

// Given reports whether the file has the key, even with null.
func (c *Config) Given(key string) bool {
	key = usualName(c.names, key)
	c.markRead(key)
	return c.file[key] != nil
}

// Set sets a key to a number.
func (c *Config) Set(key string, n int) { c.set(key, strconv.AppendInt(nil, int64(n), 10)) }

// set sets a key to a value; nil means that it has none.
func (c *Config) set(key string, value json.RawMessage) {
	if value == nil {
		value = json.RawMessage("null")
	}
	key = usualName(c.names, key)
	c.file[key], c.replaced[key] = value, true
}

// Move sets a key to the value of another key.
func (c *Config) Move(key, from string) { c.set(key, c.Value(from)) }

// Usual sets a key to a number if it has no value.
func (c *Config) Usual(key string, n int) {
	if !c.Has(key) {
		c.Set(key, n)
	}
}

// Inherit sets a key to the value that it has in whole.
func (c *Config) Inherit(key string, whole *Config) { c.set(key, whole.Value(key)) }

// Unset removes a key's value.
func (c *Config) Unset(key string) { c.set(key, nil) }

// Number reads a number of 1 or more. If the key has no value it takes without; if that is 0, the
// key must have one.
func (c *Config) Number(to *int, key string, without int) {
	*to = without
	var n Whole
	switch {
	case c.Decode(key, &n):
		*to = int(n)
	case without == 0:
		c.Fail(key, "the key is missing")
	}
	c.Bounded(to, key, *to)
}

// Bounded sets a number that must be 1 or more. Otherwise it sets 1 and keeps an error.
func (c *Config) Bounded(to *int, key string, n int) {
	if *to = n; n < 1 || n > LargestNumber {
		c.Fail(key, "%d is not a number from 1 to %d", n, LargestNumber)
		*to = 1
	}
}

// optional reads a number if the key has a value.
func (c *Config) optional(to *int, key string) {
	if c.Has(key) {
		c.Number(to, key, 0)
	}
}

// Times sets a width to ratio times another width. key is the setting with the ratio, for the error.
func (c *Config) Times(to *int, key string, of int, ratio float64) {
	*to = 1
	if wide := ratio * float64(of); wide >= 1 && wide <= LargestNumber {
		*to = int(wide)
	} else {
		c.Fail(key, "%v times %d is not a number from 1 to %d", ratio, of, LargestNumber)
	}
}

// Whole returns a whole number of any size, or without if the key has none.
func (c *Config) Whole(key string, without int) int {
	n := Whole(without)
	c.Decode(key, &n)
	return int(n)
}

func (c *Config) Flag(key string, without bool) bool {
	c.Decode(key, &without)
	return without
}

// Ratio returns a number with a fraction, or without if the key has none.
func (c *Config) Ratio(key string, without float64) float64 {
	c.Decode(key, &without)
	return without
}

// Dropout reads a probability; null means the default.
func (c *Config) Dropout(key string) float64 {
	p := 0.0
	if !c.Decode(key, &p) {
		_ = json.Unmarshal(c.defaults[usualName(c.names, key)], &p) // or stays 0
	}
	return p
}

// Word reads a text; null means the default.
func (c *Config) Word(key string) string {
	s := ""
	if !c.Decode(key, &s) {
		_ = json.Unmarshal(c.defaults[usualName(c.names, key)], &s) // or stays empty
	}
	return s
}

// WrittenBy returns the major version of transformers that wrote the file, or 0 if that is unknown.
func (c *Config) WrittenBy() int {
	major, _, _ := strings.Cut(c.Word("transformers_version"), ".")
	n, _ := strconv.Atoi(major)
	return n
}

// List returns a list of numbers, or nil.
func (c *Config) List(key string) []int {
	var l []int
	c.Decode(key, &l)
	return l
}

// Names returns a list of words, or nil.
func (c *Config) Names(key string) []string {
	var l []string
	c.Decode(key, &l)
	return l
}

// Whole is a whole number, which some files write as 2048.0.
type Whole int

// UnmarshalJSON also reads a list of one number for each layer, as in Gemma 3n, if all are equal.
func (w *Whole) UnmarshalJSON(text []byte) error {
	var each []Whole
	if len(text) > 0 && text[0] == '[' {
		if err := json.Unmarshal(text, &each); err != nil {
			return err
		}
		if each = slices.Compact(each); len(each) != 1 {
			return &json.UnmarshalTypeError{Value: "array of different numbers", Type: reflect.TypeFor[int]()}
		}
		*w = each[0]
		return nil
	}
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil || n != math.Trunc(n) || math.Abs(n) > 1<<53 {
		return &json.UnmarshalTypeError{Value: "value " + strictjson.Shorten(string(text)), Type: reflect.TypeFor[int]()}
	}
	*w = Whole(n)
	return nil
}

const perLayerKey = "per_layer_config"

// perLayer returns the settings of single layers that differ from those of the model, by layer. Any config may have
// such (transformers 5.24, integrations/heterogeneity/configuration_utils.py): a layer's key is its number, which may
// begin with zeros. A value that equals the model's is left out.
func (c *Config) perLayer() map[int]map[string]json.RawMessage {
	var given map[string]map[string]json.RawMessage
	if !c.Decode(perLayerKey, &given) {
		return nil
	}
	layers := map[int]map[string]json.RawMessage{}
	for number, settings := range given {
		block, err := strconv.Atoi(number)
		if err != nil || block < 0 || block >= max(1, c.Whole("num_hidden_layers", 0)) {
			c.Fail(perLayerKey, "%q is not the number of a layer", strictjson.Shorten(number))
			continue
		}
		if layers[block] == nil {
			layers[block] = map[string]json.RawMessage{}
		}
		for key, value := range settings {
			key = usualName(c.names, key)
			if own := c.Value(key); !same(own, value) && !(own == nil && string(value) == "null") && !(key == "skip" && string(value) == "[]") {
				layers[block][key] = value
			}
		}
	}
	return layers
}

// samePerLayer keeps an error if a layer has a setting of its own.
func (c *Config) samePerLayer() {
	for _, settings := range c.perLayer() {
		for key := range settings {
			c.Unknown(perLayerKey, key+" of single layers")
		}
	}
}

// ofKind reads the numbers of the layers for which is returns true, under keys that single layers may have. All these
// layers must have the same, and no layer a setting under another key.
func (c *Config) ofKind(layers map[int]map[string]json.RawMessage, blocks int, is func(block int) bool, to map[string]*int) {
	first := true
	for block := range blocks {
		if !is(block) {
			continue
		}
		for key := range layers[block] {
			if to[key] == nil {
				c.Unknown(perLayerKey, key+" of single layers")
			}
		}
		for key, number := range to {
			n := Whole(c.Whole(key, *number))
			if value, ok := layers[block][key]; ok && strictjson.Unmarshal(value, &n) != nil {
				c.Fail(perLayerKey, "%s of layer %d is not a number", key, block)
			}
			if !first && *number != int(n) {
				c.Unknown(perLayerKey, key+" that differs among layers of one kind")
			}
			c.Bounded(number, perLayerKey, int(n))
		}
		first = false
	}
}
