package estimating

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What most people need is on one screen, and names the pages of the rest.
func TestHelpIsOneScreen(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"estimate", "--help"}, nil, &stdout, &stderr), stderr.String())
	text := stdout.String()
	assert.LessOrEqual(t, strings.Count(text, "\n"), 50)
	for _, topic := range []string{"training", "serving", "engines", "llama", "fits", "machine", "json", "models"} {
		assert.Contains(t, text, "gpumemtrack help estimate-"+topic)
	}
}
