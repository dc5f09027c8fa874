package family

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// reading records what is read of a file's objects: that of the whole, and those of parts.
type reading struct {
	objects []*object
	types   []string // of the whole and of its parts
}

// object is an object of a config.json.
type object struct {
	path    string // "" or ends with a dot
	class   class
	members map[string]json.RawMessage // by the names that the file has
	read    map[string]bool
}

// at returns the object at a path. It adds it when the path is new.
func (r *reading) at(path string, of class, members map[string]json.RawMessage) *object {
	for _, o := range r.objects {
		if o.path == path {
			return o
		}
	}
	o := &object{path, of, members, map[string]bool{}}
	r.objects = append(r.objects, o)
	return o
}

// unread returns the keys that no reader looked at though their values may bear on sizes, with the
// keys of the objects that they are in, such as vision_config.head_dim. shaping is such a
// key that changes single layers, without which no size is sure, or "".
func (r *reading) unread() (u setting.Unread, shaping string) {
	for _, o := range r.objects {
		for _, key := range slices.Sorted(maps.Keys(o.members)) {
			if o.read[key] {
				continue
			}
			shaping = cmp.Or(shaping, addUnread(&u, o.path, key, o.members, o.class))
		}
	}
	return u, shaping
}

// addUnread adds a key with its value, unless it is harmless. It returns the key instead if that
// changes single layers.
func addUnread(u *setting.Unread, path, key string, in map[string]json.RawMessage, of class) (shaping string) {
	value := in[key]
	part, isPart := of.Parts[key]
	switch {
	case isPart && bytes.HasPrefix(value, []byte("{")):
		return addUnreadPart(u, path+key+".", value, part)
	case harmless(key), of.usual(key, value, in), allAttend(key, value), slices.Contains(of.Computed, key), !of.has(key) && off(value), shut(key, of, in):
		return ""
	case shapesLayers(key, value):
		return printable(path + key)
	}
	name := printable(path + key)
	u.Keys = append(u.Keys, name)
	switch {
	case !of.has(key):
		u.Foreign = append(u.Foreign, name)
	case forTraining(key):
		partOf(u, path, key).Training++
	default:
		grows := larger(value, of.Defaults[key])
		partOf(u, path, key).Add(setting.Growth{Inference: grows, Training: grows})
	}
	return ""
}

// printable returns a key as an answer can print it: a file may have any text there, also what moves a terminal's cursor.
func printable(key string) string {
	quoted := strconv.Quote(strictjson.Shorten(key))
	return quoted[1 : len(quoted)-1]
}

// The parts that a config.json can have settings of.
const ofText, ofImages, ofSound = "text", "images", "sound"

// partOf returns what grows with a key: that of the part whose settings it is among, or whose name it has.
func partOf(u *setting.Unread, path, key string) *setting.Growth {
	name, _, inPart := strings.Cut(path, ".")
	if !inPart {
		name = key
	}
	for _, p := range []struct {
		part  string
		words []string
	}{{ofImages, []string{"vision", "image", "projector", "merge"}}, {ofSound, []string{"audio", "sound", "speech"}}, {ofText, []string{"text_config", "llm_config"}}} {
		if slices.ContainsFunc(p.words, func(word string) bool { return strings.Contains(name, word) }) {
			return &u.Part(p.part).Growth
		}
	}
	return &u.Growth
}

// addUnreadPart adds the keys of a part that no reader looked at.
func addUnreadPart(u *setting.Unread, path string, text json.RawMessage, part component) (shaping string) {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil {
		return "" // the text was read before
	}
	var name string
	_ = json.Unmarshal(members["model_type"], &name) // or it has none
	of := classOf(cmp.Or(name, part.Type)).within(part)
	for _, key := range slices.Sorted(maps.Keys(members)) {
		shaping = cmp.Or(shaping, addUnread(u, path, key, members, of))
	}
	return shaping
}

// within returns the class of a part, of which the whole may change the usual values.
func (c class) within(part component) class {
	var with map[string]json.RawMessage
	if json.Unmarshal(part.With, &with) == nil {
		c.Sought = maps.Clone(c.Sought)
		if c.Sought == nil {
			c.Sought = map[string]json.RawMessage{}
		}
		maps.Copy(c.Sought, with)
	}
	return c
}

// has reports whether a class has the key, under any of its names. Classes that are not in
// transformers have any.
func (c class) has(key string) bool {
	if c.Name == "" {
		return true
	}
	_, declared := c.Defaults[key]
	_, saved := c.Saved[key]
	_, alias := c.Names[key]
	_, sought := c.Sought[key]
	_, part := c.Parts[key]
	_, common := common().Defaults[key]
	return declared || saved || sought || alias || part || common || c.stores(key)
}

// off reports whether a value says that something is not there.
func off(value json.RawMessage) bool {
	return slices.Contains([]string{"null", "false", "0", "0.0", `""`, "[]", "{}"}, string(value))
}

// shut reports whether a key only counts where another one is on, which is off.
func shut(key string, of class, in map[string]json.RawMessage) bool {
	gate, ok := gates[key]
	if !ok {
		return false
	}
	value, given := in[gate]
	if !given {
		value, given = of.Defaults[gate]
	}
	return given && off(value)
}

// usual reports whether a key has the value that the class declares: readers were held to those
// models. A number that the class computes from others and saves is usual where these are, too.
func (c class) usual(key string, value json.RawMessage, in map[string]json.RawMessage) bool {
	for _, of := range []map[string]json.RawMessage{c.Defaults, c.Sought, common().Defaults} {
		if usual, ok := of[key]; ok && same(usual, value) {
			return true
		}
	}
	if usual, ok := c.Saved[key]; ok && same(usual, value) && (!isNumber(value) || c.unchanged(in)) {
		return true
	}
	for alias, stored := range c.Names {
		if usual, ok := c.Defaults[alias]; ok && stored == key && same(usual, value) {
			return true
		}
		if usual, ok := c.Defaults[stored]; ok && alias == key && same(usual, value) {
			return true
		}
	}
	return false
}

func isNumber(value json.RawMessage) bool {
	var n float64
	return json.Unmarshal(value, &n) == nil && string(value) != "null"
}

// unchanged reports whether all numbers that the class declares are as it declares or saves them.
func (c class) unchanged(in map[string]json.RawMessage) bool {
	for key, value := range in {
		var was, is float64
		usual, ok := c.Defaults[key]
		for alias, stored := range c.Names { // one of them is declared
			if alias == key && c.Defaults[stored] != nil {
				usual, ok = c.Defaults[stored], true
			} else if stored == key && c.Defaults[alias] != nil {
				usual, ok = c.Defaults[alias], true
			}
		}
		if ok && json.Unmarshal(usual, &was) == nil && json.Unmarshal(value, &is) == nil && was != is && !harmless(key) && !same(c.Saved[key], value) {
			return false
		}
	}
	return true
}

// exactGELU are activation functions that run and save alike: torch.nn.functional.gelu either way.
var exactGELU = []string{`"gelu"`, `"gelu_pytorch_tanh"`}

// same reports whether two texts are one value of JSON.
func same(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if slices.Contains(exactGELU, string(a)) && slices.Contains(exactGELU, string(b)) {
		return true
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// larger is what a key adds to the upper bound: sizes may follow a number in proportion, either way,
// and another value may double them. No key is taken to more than double them: one that does, such
// as a head's size, is read by every family that has it.
func larger(value, usual json.RawMessage) float64 {
	var v, u float64
	if json.Unmarshal(value, &v) != nil || json.Unmarshal(usual, &u) != nil || v <= 0 || u <= 0 {
		return 1
	}
	return min(1, max(v/u, u/v)-1)
}

// allAttend reports whether a key says that all layers have full attention, as they have without it.
func allAttend(key string, value json.RawMessage) bool {
	var words []string
	return key == "layer_types" && json.Unmarshal(value, &words) == nil &&
		!slices.ContainsFunc(words, func(word string) bool { return word != "full_attention" })
}

// shapesLayers reports whether a key changes single layers: per_layer_config, and lists of words of
// which some layers have other ones.
func shapesLayers(key string, value json.RawMessage) bool {
	if key == "per_layer_config" {
		return !slices.Contains([]string{"null", "{}"}, string(value))
	}
	var words []string
	return json.Unmarshal(value, &words) == nil && len(words) > 0 &&
		(strings.Contains(key, "layer") || strings.Contains(key, "block")) &&
		len(slices.Compact(slices.Clone(words))) > 1
}
