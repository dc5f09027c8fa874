package checkpoint

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// covered is a model_type of transformers: its default config, and the classes of its mappings, as
// testdata/torch/mutations.py writes them.
type covered struct {
	Config  map[string]any
	Classes map[string]struct {
		Params *int64 // nil if transformers cannot build it of the default config
		Tasks  []string
	}
}

// Each pair of type and class in transformers' auto mappings has as many parameters as transformers makes of the
// type's default config, or is refused, or the answer says what differs. CI's log has the numbers.
func TestCoverageOfTransformers(t *testing.T) {
	var file struct {
		Transformers string
		Types        map[string]covered
	}
	unzip(t, "testdata/torch/coverage.json.gz", &file)
	found, unbuilt := map[verdict]int{}, 0
	for _, kind := range slices.Sorted(maps.Keys(file.Types)) {
		of := file.Types[kind]
		for _, class := range slices.Sorted(maps.Keys(of.Classes)) {
			c := of.Classes[class]
			if c.Params == nil {
				unbuilt++
				continue
			}
			config := maps.Clone(of.Config)
			config["architectures"] = []string{class}
			f, a := judge(t, config, *c.Params)
			if a.verdict == silentlyWrong && len(f.NotRead()) > 0 {
				a.verdict = named
			}
			found[a.verdict]++
			assert.NotEqual(t, silentlyWrong, a.verdict, "%s of %s: %s", class, kind, a.why)
		}
	}
	t.Logf("coverage of transformers %s: %d pairs: %d exact, %d named, %d refused, %d wrong; %d that it cannot build",
		file.Transformers, sum(found), found[exact], found[named], found[refused], found[silentlyWrong], unbuilt)
}
