package cli

import (
	"encoding/json"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	of := func(release Build, info *debug.BuildInfo) string { return versionOf(release, info).String() }
	assert.Regexp(t, `^gpumemtrack v1\.2\.3 commit 0123456789ab of 2026-11-22 with changes, go1\.\d+\S* \w+/\w+$`, of(Build{}, built))
	assert.Regexp(t, `^gpumemtrack v2\.0\.0 commit 0123456789ab of 2026-11-23 `, of(Build{Version: "v2.0.0", Date: "2026-11-23T00:00:00Z"}, built))
	for _, version := range []string{"", "(devel)"} {
		bare := new(debug.BuildInfo)
		bare.Main.Version = version
		assert.Regexp(t, `^gpumemtrack devel, go`, of(Build{}, bare))
		assert.Regexp(t, `^gpumemtrack v0\.1\.0 commit abc of 2026-11-23, go`, of(Build{"v0.1.0", "abc", "2026-11-23"}, bare))
	}
}

func TestVersionInJSON(t *testing.T) {
	text, err := json.Marshal(versionOf(Build{Version: "v0.1.0"}, new(debug.BuildInfo)))
	require.NoError(t, err)
	assert.JSONEq(t, `{"schema": "gpumemtrack.version/1", "version": "v0.1.0", "commit": null, "date": null, "modified": null,
		"go": "`+runtime.Version()+`", "platform": "`+runtime.GOOS+"/"+runtime.GOARCH+`"}`, string(text))
}

func TestLinesOnATerminal(t *testing.T) {
	assert.Equal(t, "GPU 0 mem…", Fit("GPU 0 memory used", 11))
	assert.Equal(t, "a\x1b", Paint("a\x1b", Red, false))
	assert.Equal(t, Red+"a"+plain, Paint("a", Red, true))
}
