package estimating

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// topicPages are the pages that the help of estimate names.
func topicPages() []string {
	var pages []string
	for _, topic := range []string{"training", "images", "diffusion", "serving", "engines", "llama", "fits", "machine", "json", "models"} {
		pages = append(pages, "estimate-"+topic)
	}
	return pages
}

// What most people need is on one screen, and names the pages of the rest.
func TestHelpIsOneScreen(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"estimate", "--help"}, nil, &stdout, &stderr), stderr.String())
	text := stdout.String()
	assert.LessOrEqual(t, strings.Count(text, "\n"), 50)
	for _, page := range append([]string{"estimate"}, topicPages()...) {
		stdout.Reset()
		require.Zero(t, run([]string{"help", page}, nil, &stdout, &stderr), stderr.String())
		for line := range strings.Lines(stdout.String()) {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 80, "%s: %s", page, line)
		}
	}
	for _, topic := range []string{"training", "serving", "engines", "llama", "fits", "machine", "json", "models"} {
		assert.Contains(t, text, "gpumemtrack help estimate-"+topic)
	}
}
