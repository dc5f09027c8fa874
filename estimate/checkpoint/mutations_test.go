package checkpoint

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// mutated is a class of transformers and its configs with one key changed, as testdata/torch/mutations.py writes them.
type mutated struct {
	Class  string
	Config map[string]any
	Params int64
	Cases  []struct {
		Key    string         // what was changed
		Set    map[string]any // what then differs in the file, by path
		Unset  []string       // what is then missing
		Params *int64         // nil if it has as many as the unchanged
	}
}

// With any key of a config.json changed, the model has as many parameters as transformers makes of it, or it is
// refused. testdata/torch/mutations.txt lists what is wrong today: a fault that is fixed leaves the list, and none joins it.
func TestConfigsWithOneKeyChanged(t *testing.T) {
	var file struct{ Types map[string]mutated }
	unzip(t, "testdata/torch/mutations.json.gz", &file)
	found := map[verdict]int{}
	var wrong []string
	judged := func(kind, key string, config map[string]any, want int64, list bool) bool {
		v, got := judge(t, config, want)
		if found[v]++; v == silentlyWrong && list {
			wrong = append(wrong, fmt.Sprintf("%s %s", kind, key))
			t.Logf("%s, %s changed: %d parameters, transformers has %d", kind, key, got, want)
		}
		return v != silentlyWrong
	}
	for _, kind := range slices.Sorted(maps.Keys(file.Types)) {
		m := file.Types[kind]
		list := judged(kind, "nothing", m.Config, m.Params, true) // else any change would be on the list
		for _, c := range m.Cases {
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
			judged(kind, c.Key, config, want, list)
		}
	}
	t.Logf("coverage of configs with one key changed: %d configs of %d types: %d exact, %d named, %d refused, %d wrong",
		sum(found), len(file.Types), found[exact], found[named], found[refused], found[silentlyWrong])
	assertKnown(t, "testdata/torch/mutations.txt", wrong)
}

// assertKnown checks that what is wrong is what a file lists, a case to a line.
func assertKnown(t *testing.T, file string, wrong []string) {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	known := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
	for _, w := range slices.Compact(slices.Sorted(slices.Values(wrong))) {
		assert.True(t, slices.Contains(known, w), "%s: it was right, or is new; %s does not list it", w, file)
	}
	for _, k := range known {
		assert.True(t, slices.Contains(wrong, k), "%s: it is right now: remove the line from %s", k, file)
	}
}

// verdict is how an answer compares with transformers.
type verdict string

const (
	exact         verdict = "exact"
	named         verdict = "named" // the answer says that it did not read the key
	refused       verdict = "refused"
	silentlyWrong verdict = "wrong"
)

// judge compares a config's parameters with those of transformers.
func judge(t *testing.T, config map[string]any, want int64) (verdict, int64) {
	text, err := json.Marshal(config)
	require.NoError(t, err)
	f, err := ParseConfig("model", text)
	if err != nil {
		return refused, 0
	}
	r, err := f.Report()
	switch {
	case err != nil:
		return refused, 0
	case r.Params.Count == want:
		return exact, want
	case len(f.NotRead()) > 0:
		return named, r.Params.Count
	}
	return silentlyWrong, r.Params.Count
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
