package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(&out))
	text := out.String()
	assert.Regexp(t, `What grows:\n  main\.go:\d+ main\.\(\*service\)\.remember grows by 1\.0 MiB a mark: 27\.0 MiB more over the last 27 marks\n\n`,
		strings.ReplaceAll(text, "leak.(*service)", "main.(*service)"))
	assert.Contains(t, text, "30 buffers, 30.0 MiB: 30 * Activation (256, 1024) float32, allocated by\n")
	assert.Regexp(t, `10 buffers, 2\.5 MiB: 10 \* Temporary \(64, 1024\) float32, \d+ of them lost for certain`, text)
	_, verdict, found := strings.Cut(text, "What a test would say:\n")
	require.True(t, found)
	assert.Contains(t, verdict, "device memory was not freed: ")
	assert.Contains(t, verdict, "(*service).handle(...)")
	assert.NotContains(t, verdict, "(*service).remember(...)", "the cache still has those")
}
