package family

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// class is what the configuration class of a type says in transformers, or the model of diffusers: a
// row of defaults.json. That of the type "" is what all classes share.
type class struct {
	Name       string                     `json:"class"`
	Defaults   map[string]json.RawMessage // by the names that the class declares
	Saved      map[string]json.RawMessage // what save_pretrained writes for the defaults, where that differs
	Computed   []string                   // keys that are computed from others, whatever a file says
	Sought     map[string]json.RawMessage // keys that it does not declare and that its code looks for all the same
	Names      map[string]string          // attribute_map: other names of keys
	Parts      map[string]component       // by key
	Generation []string                   // only in "": keys that say how text is written
}

// common is what all classes share.
var common = sync.OnceValue(func() class { return classOf("") })

// component is a configuration within another.
type component struct {
	Type string          // where the file names none
	With json.RawMessage // what it has where the file has no such part; may be nil
}

// defaultsJSON holds a row for each model_type, in a line of its own; `make tables` writes it.
//
//go:generate gzip -9 -n -k -f defaults.json
//go:embed defaults.json.gz
var defaultsJSON []byte

// defaults returns the text of defaults.json.
var defaults = sync.OnceValue(func() []byte {
	text, err := strictjson.Unzipped(defaultsJSON)
	if err != nil {
		panic("defaults.json: " + err.Error()) // it is part of the binary
	}
	return text
})

// classOf returns the row of a type, which is empty if transformers has no such type. It decodes no
// other row: most programs read few types.
func classOf(name string) class {
	var c class
	quoted, _ := json.Marshal(name) // a string can be marshaled
	_, line, ok := bytes.Cut(defaults(), slices.Concat([]byte("\n"), quoted, []byte(": ")))
	if !ok {
		return c
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	if err := strictjson.Unmarshal(bytes.TrimSuffix(line, []byte(",")), &c); err != nil {
		panic("defaults.json: " + err.Error())
	}
	return c
}

// usualNames maps each other name of a key to the one under which Config keeps it: a family's own
// names, and those of the class, which has one attribute under both.
func (c class) usualNames(own map[string]string) map[string]string {
	names := maps.Clone(own)
	if names == nil {
		names = map[string]string{}
	}
	for _, usual := range slices.Sorted(maps.Keys(c.Names)) {
		if a, b := usualName(names, usual), usualName(names, c.Names[usual]); a != b {
			names[b] = a
		}
	}
	return names
}

// usualName returns the name under which Config keeps a key.
func usualName(names map[string]string, key string) string {
	for range names { // a chain is no longer than that
		usual, ok := names[key]
		if !ok {
			break
		}
		key = usual
	}
	return key
}

// renamed gives keys their usual names. Of two names for one key, a name that the class does not
// declare has the last word, as in transformers, which sets those last; otherwise the usual name.
func (c class) renamed(members map[string]json.RawMessage, names map[string]string) map[string]json.RawMessage {
	usual := make(map[string]json.RawMessage, len(members))
	last := map[string]int{}
	for key, value := range members {
		to, rank := usualName(names, key), 1
		_, declared := c.Defaults[key]
		switch _, alias := c.Names[key]; {
		case !declared && (alias || c.stores(key)):
			rank = 3
		case key == to:
			rank = 2
		}
		if rank > last[to] {
			usual[to], last[to] = value, rank
		}
	}
	return usual
}

// stores reports whether another name leads to the key.
func (c class) stores(key string) bool {
	for _, stored := range c.Names {
		if stored == key {
			return true
		}
	}
	return false
}

// float32JSON holds the modules of each type that stay in float32; checkpoint/testdata/torch/classes.py writes it.
//
//go:embed float32.json
var float32JSON []byte

// float32Modules has the modules by model_type.
var float32Modules = sync.OnceValue(func() map[string]struct{ Float16, Always []string } {
	var f struct {
		Transformers string
		Types        map[string]struct{ Float16, Always []string }
	}
	if err := strictjson.Unmarshal(float32JSON, &f); err != nil {
		panic("float32.json: " + err.Error()) // it is part of the binary
	}
	return f.Types
})

// inFloat32 returns what stays in float32 of a model with parts of these types: a part's modules are searched for in the
// whole, as transformers does it.
func inFloat32(types []string) setting.Float32Parts {
	var f setting.Float32Parts
	for _, name := range slices.Compact(slices.Sorted(slices.Values(types))) {
		of := float32Modules()[name]
		for _, text := range of.Float16 {
			f.Float16 = append(f.Float16, setting.Part32{Text: text})
		}
		for _, text := range of.Always {
			f.Always = append(f.Always, setting.Part32{Text: text})
		}
	}
	return f
}
