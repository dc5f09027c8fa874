package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	var b strings.Builder
	require.NoError(t, run(&b))
	for _, want := range []string{
		"Model VGG-19 : params: 574.668960 MB", "largest batch that trains in 24 GiB:",
		"Meta-Llama-3-8B, 8030261248 parameters", "serving 32 sequences",
	} {
		assert.Contains(t, b.String(), want)
	}
}
