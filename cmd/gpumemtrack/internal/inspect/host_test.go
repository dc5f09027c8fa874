package inspect

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pinnedFile is a snapshot of PyTorch with 4 KiB of pinned host memory, or with none.
func pinnedFile(t *testing.T, pinned bool) string {
	host := ""
	if pinned {
		host = `, "host_segments": [{"address": 9000, "total_size": 4096, "state": "active_allocated",
			"frames": [{"name": "pin", "filename": "/src/loader.py", "line": 3}]}]`
	}
	path := filepath.Join(t.TempDir(), "run.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"segments": [{"device": 0, "address": 1048576, "total_size": 2097152, "stream": 0, "segment_type": "small",
		"blocks": [{"size": 512, "state": "active_allocated"}, {"size": 2096640, "state": "inactive"}]}], "device_traces": []`+host+`}`), 0o666))
	return path
}

// show returns what a command prints.
func show(t *testing.T, args ...string) string {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(args, nil, &stdout, &stderr), stderr.String())
	return stdout.String()
}

func TestHostMemoryIsNamed(t *testing.T) {
	pinned, none := pinnedFile(t, true), pinnedFile(t, false)
	text := show(t, "show", "--host", pinned)
	assert.Contains(t, text, "live host memory at the end of ")
	assert.Contains(t, text, "loader.py:3 pin")
	assert.NotContains(t, text, "no host memory")
	assert.Contains(t, show(t, "show", pinned), "Not in the table: 1 buffer, 4.0 KiB of host memory, see --host\n")
	assert.Contains(t, show(t, "diff", "--host", none, pinned), "live host memory\n  before: ")

	text = show(t, "show", "--host", none)
	assert.Contains(t, text, "no host memory: ")
	assert.NotContains(t, text, "Share")
	assert.NotContains(t, show(t, "show", none), "host")
}

func TestHostMemoryInJSON(t *testing.T) {
	pinned := pinnedFile(t, true)
	for _, args := range [][]string{{"show", pinned}, {"diff", pinned, pinned}} {
		for _, host := range []bool{false, true} {
			if host {
				args = append(args, "--host")
			}
			var out struct{ Host bool }
			require.NoError(t, json.Unmarshal([]byte(show(t, append(args, "--json")...)), &out))
			assert.Equal(t, host, out.Host, args)
		}
	}
}
