package uplot

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A page puts the parts between <script> and <style> tags and into a comment.
func TestPartsFitIntoAPage(t *testing.T) {
	assert.True(t, strings.HasPrefix(JS, "/*! https://github.com/leeoniya/uPlot (v"+Version+")"))
	assert.NotContains(t, JS, "</script")
	assert.Contains(t, CSS, ".uplot")
	assert.NotContains(t, CSS, "</style")
	assert.Contains(t, Licence, "The MIT License")
	assert.NotContains(t, Licence, "--")
}
