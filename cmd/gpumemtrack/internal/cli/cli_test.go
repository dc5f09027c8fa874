package cli

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestElide(t *testing.T) {
	assert.Equal(t, "abcdef", Elide("abcdef", 6))
	assert.Equal(t, "a…ef", Elide("abcdef", 4)[:len("a…ef")])
	assert.Len(t, []rune(Elide(strings.Repeat("ä", 50), 20)), 20)
}

func TestVersion(t *testing.T) {
	built := &debug.BuildInfo{Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-11-22T09:00:00Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	built.Main.Version = "v1.2.3"
	assert.Regexp(t, `^gpumemtrack v1\.2\.3 commit 0123456789ab of 2026-11-22 with changes, go1\.\d+\S* \w+/\w+$`, describeBuild(built))
	assert.Contains(t, describeBuild(&debug.BuildInfo{}), "(unknown version)")
}

func TestLinesOnATerminal(t *testing.T) {
	assert.Equal(t, "GPU 0 mem…", Fit("GPU 0 memory used", 11))
	assert.Equal(t, "a\x1b", Paint("a\x1b", Red, false))
	assert.Equal(t, Red+"a"+plain, Paint("a", Red, true))
}
