package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// byteTensors is a safetensors file with tensors of these names, a byte each.
func byteTensors(names ...string) []byte {
	header := "{"
	for i, name := range names {
		if i > 0 {
			header += ","
		}
		header += fmt.Sprintf(`%q:{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}`, name, i, i+1)
	}
	return safetensorsFile(header+"}", len(names))
}

// writeFolder writes files into a new directory and returns its path.
func writeFolder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

const indexName = "model.safetensors.index.json"

func TestIndexGathersItsShards(t *testing.T) {
	dir := writeFolder(t, map[string]string{
		indexName:       `{"metadata":{"total_size":3},"weight_map":{"c":"2.safetensors","a":"1.safetensors","b":"1.safetensors"}}`,
		"1.safetensors": string(byteTensors("a", "b")),
		"2.safetensors": string(byteTensors("c")),
	})
	for _, path := range []string{dir, filepath.Join(dir, indexName)} {
		c, err := ReadFile(path)
		require.NoError(t, err)
		var names []string
		for _, tensor := range c.tensors {
			names = append(names, tensor.File+":"+tensor.Name)
		}
		assert.Equal(t, []string{"1.safetensors:a", "1.safetensors:b", "2.safetensors:c"}, names)
		assert.Equal(t, alloc.Bytes(3), c.bytes())
	}
}

func TestIndexSaysWhatIsWrong(t *testing.T) {
	for name, test := range map[string]struct {
		index, want string
	}{
		"shard missing":       {`{"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"3.safetensors"}}`, `shard "3.safetensors": stat`},
		"tensor missing":      {`{"weight_map":{"a":"1.safetensors","b":"1.safetensors","z":"1.safetensors"}}`, `tensor "z" is not in its shard "1.safetensors"`},
		"tensor elsewhere":    {`{"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"2.safetensors"}}`, `shard "1.safetensors" holds tensor "b", which the index has in "2.safetensors"`},
		"tensor not named":    {`{"weight_map":{"a":"1.safetensors"}}`, `shard "1.safetensors" holds tensor "b", which the index does not name`},
		"tensor in two":       {`{"weight_map":{"a":"1.safetensors","b":"1.safetensors","d":"4.safetensors"}}`, `shard "4.safetensors" holds tensor "a", which the index does not name or which another shard holds too`},
		"damaged shard":       {`{"weight_map":{"a":"bad.safetensors"}}`, `shard "bad.safetensors": open bad.safetensors: 3 bytes are too few`},
		"path out of the way": {`{"weight_map":{"a":"../1.safetensors"}}`, `shard "../1.safetensors" is not the name of a file beside it`},
		"shard a folder":      {`{"weight_map":{"a":"."}}`, `it is not a regular file`},
		"name twice":          {`{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}`, `duplicate`},
		"no map":              {`{"metadata":{}}`, "it has no weight_map"},
		"not JSON":            {`{"weight_map":`, "it is not the JSON that belongs here"},
		"a list":              {`[]`, "it is not the JSON that belongs here"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeFolder(t, map[string]string{
				indexName:         test.index,
				"1.safetensors":   string(byteTensors("a", "b")),
				"2.safetensors":   string(byteTensors("c")),
				"4.safetensors":   string(byteTensors("a", "d")),
				"bad.safetensors": "abc",
			})
			_, err := ReadFile(dir)
			require.ErrorContains(t, err, test.want)
			assert.ErrorContains(t, err, "checkpoint: open "+indexName+": ")
		})
	}
}
