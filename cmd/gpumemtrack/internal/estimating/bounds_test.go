package estimating

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

// What is not counted has no upper bound, and --fits says that it cannot know; unless what is counted is too much already.
func TestFitsCannotKnow(t *testing.T) {
	config := visionConfig(t)
	for args, want := range map[string]struct {
		code           int
		stdout, stderr string
	}{
		config + " --seq 64 --fits 4GiB":                               {cli.ExitUnknown, "There is no upper bound: what the tower", "cannot know: what the tower of images or sound needs to run is not counted, so whether"},
		config + " --seq 64 --fits 4GiB --images 0":                    {0, "It fits in 4.0 GiB.", ""},
		config + " --seq 2048 --fits 4GiB --images 1":                  {0, "It fits in 4.0 GiB.", ""},
		config + " --seq 64 --fits 100MiB":                             {cli.ExitUnfit, "", "at least"},
		config + " --seq 64 --fits 4GiB --max-batch":                   {cli.ExitUnknown, "", "cannot know: what the tower"},
		config + " --seq 64 --fits 4GiB --json":                        {cli.ExitUnknown, `"fits":null`, "cannot know"},
		"llama-3-8b --fits 4GiB --json":                                {cli.ExitUnfit, `"fits":false`, "does not fit"},
		"gpt2 --serve --seq 64 --gpu ada --cuda-loading lazy":          {0, "more than the estimate:", ""},
		"gpt2 --serve --seq 64 --gpu ada --cuda-loading lazy --detail": {0, "What is uncertain:", ""},
		"gpt2 --train --seq 64 --gpu ada --detail":                     {0, "--cuda-loading says which", ""},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, want.code, run(strings.Fields("estimate "+args), nil, &stdout, &stderr), "%s: %s", args, stderr.String())
		assert.Contains(t, stdout.String(), want.stdout, args)
		assert.Contains(t, stderr.String(), want.stderr, args)
	}
	for _, key := range []string{"peak_upper_bytes", "allocated_upper_bytes", "reserved_upper_bytes", "device_upper_bytes", "needed_upper_bytes"} {
		var stdout, stderr bytes.Buffer
		require.Zero(t, run(strings.Fields("estimate --json --seq 64 "+config), nil, &stdout, &stderr), stderr.String())
		assert.Contains(t, stdout.String(), `"`+key+`":null`)
	}
}
