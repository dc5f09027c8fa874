package checkpoint

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// mutated is a class of transformers and its configs with one key changed, as testdata/torch/mutations.py writes them.
type mutated struct {
	Class  string
	Config map[string]any
	Params int64
	Tokens int    // of a text, of which Cache and those of the cases are
	Cache  *int64 // bytes in bfloat16; nil if there is none, or if the meta device does not run the model
	Cases  []mutation
}

// mutation is a config with a key changed.
type mutation struct {
	Key    string         // what was changed
	Set    map[string]any // what then differs in the file, by path
	Unset  []string       // what is then missing
	Params *int64         // nil if it has as many as the unchanged
	Cache  *int64         // nil if the key does not bear on it
}

// With any key of a config.json changed, the model has as many parameters and as large a cache as transformers makes of
// it, or it is refused, or the answer names the key or the difference.
func TestConfigsWithOneKeyChanged(t *testing.T) {
	var file struct{ Types map[string]mutated }
	unzip(t, "testdata/torch/mutations.json.gz", &file)
	found := map[verdict]int{}
	for _, kind := range slices.Sorted(maps.Keys(file.Types)) {
		m := file.Types[kind]
		unchanged := mutation{Key: "nothing", Params: &m.Params, Cache: m.Cache}
		for _, c := range append([]mutation{unchanged}, m.Cases...) {
			a := m.answer(t, c)
			found[a.verdict]++
			assert.NotEqual(t, silentlyWrong, a.verdict, "%s, %s changed: %s", kind, c.Key, a.why)
		}
	}
	t.Logf("coverage of configs with one key changed: %d configs of %d types: %d exact, %d named, %d refused, %d wrong",
		sum(found), len(file.Types), found[exact], found[named], found[refused], found[silentlyWrong])
}

// answer is what is made of a config.
type answer struct {
	verdict verdict
	why     string // it is wrong
}

// answer compares what is made of a changed config with what transformers makes of it.
func (m mutated) answer(t *testing.T, c mutation) answer {
	config := copied(m.Config)
	for path, value := range c.Set {
		at, key := inside(config, path)
		at[key] = value
	}
	for _, path := range c.Unset {
		at, key := inside(config, path)
		delete(at, key)
	}
	want := m.Params
	if c.Params != nil {
		want = *c.Params
	}
	f, a := judge(t, config, want)
	if a.verdict == exact && c.Cache != nil {
		a = m.compareCache(t, f, *c.Cache)
	}
	if a.verdict == silentlyWrong && slices.ContainsFunc(f.NotRead(), c.changes) {
		return answer{verdict: named}
	}
	return a
}

// compareCache compares what one text holds. Windows keep a token less in transformers, which also counts them.
func (m mutated) compareCache(t *testing.T, f *File, want int64) answer {
	k, err := f.Cache(1, m.Tokens)
	if err != nil {
		return answer{verdict: refused}
	}
	k.DType = alloc.BFloat16
	got, err := estimate.KVCache(k)
	require.NoError(t, err)
	k.Window = max(k.Window-1, min(k.Window, 1))
	short, err := estimate.KVCache(k)
	require.NoError(t, err)
	for _, got := range []alloc.Bytes{got, short} {
		if off := math.Abs(float64(int64(got) - want)); off <= 0.01*float64(want) {
			return answer{verdict: exact}
		}
	}
	return answer{silentlyWrong, fmt.Sprintf("a cache of %d bytes, transformers has %d", got, want)}
}

// changes reports whether a key is one of those that differ, or holds one.
func (c mutation) changes(key string) bool {
	key = strings.ReplaceAll(key, ".", "/")
	for path := range c.Set {
		if path == key || strings.HasPrefix(path, key+"/") {
			return true
		}
	}
	return slices.Contains(c.Unset, key)
}

// verdict is how an answer compares with transformers.
type verdict string

const (
	exact         verdict = "exact"
	named         verdict = "named" // the answer says that it did not read the key, or by how much a size may differ
	refused       verdict = "refused"
	silentlyWrong verdict = "wrong"
)

// judge compares a config's parameters with those of transformers. Unless it is refused, the file is not nil.
func judge(t *testing.T, config map[string]any, want int64) (*File, answer) {
	text, err := json.Marshal(config)
	require.NoError(t, err)
	f, err := ParseConfig("model", text)
	if err != nil {
		return nil, answer{verdict: refused}
	}
	r, err := f.Report()
	switch {
	case err != nil:
		return nil, answer{verdict: refused}
	case r.Params.Count == want:
		return f, answer{verdict: exact}
	case slices.ContainsFunc(r.Notes, gives(r.Params.Count-want)):
		return f, answer{verdict: named}
	}
	return f, answer{silentlyWrong, fmt.Sprintf("%d parameters, transformers has %d", r.Params.Count, want)}
}

// gives returns whether a note has this number of parameters, which another model of the same config lacks.
func gives(params int64) func(note string) bool {
	return func(note string) bool { return strings.Contains(note, fmt.Sprintf(": %d parameters;", params)) }
}

// copied is a config with maps of its own.
func copied(config map[string]any) map[string]any {
	config = maps.Clone(config)
	for key, value := range config {
		if part, ok := value.(map[string]any); ok {
			config[key] = copied(part)
		}
	}
	return config
}

// inside returns the part of a config in which the last key of a path stands, and that key.
func inside(config map[string]any, path string) (part map[string]any, key string) {
	for {
		first, rest, deeper := strings.Cut(path, "/")
		if !deeper {
			return config, first
		}
		next, ok := config[first].(map[string]any)
		if !ok {
			next = map[string]any{}
			config[first] = next
		}
		config, path = next, rest
	}
}

func unzip(t *testing.T, file string, to any) {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, strictjson.Unzip(data, to))
}

func sum(found map[verdict]int) int {
	n := 0
	for _, c := range found {
		n += c
	}
	return n
}
