package readme_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	links    = regexp.MustCompile(`\]\(([^)\s#]*)(?:#([^)\s]*))?\)`)
	headings = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// TestLinks follows the links between the project's pages, to their headings too.
func TestLinks(t *testing.T) {
	for _, path := range append(glob(t, "../../../*.md"), glob(t, "../../../docs/*.md")...) {
		for _, link := range links.FindAllStringSubmatch(read(t, path), -1) {
			file, anchor := link[1], link[2]
			if strings.Contains(file, "://") {
				continue
			}
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			_, err := os.Stat(target)
			if assert.NoError(t, err, "%s: %s", path, link[0]) && anchor != "" {
				assert.Contains(t, anchors(read(t, target)), anchor, "%s: %s", path, link[0])
			}
		}
	}
}

// TestContents finds every page and schema of docs in its table of contents, once.
func TestContents(t *testing.T) {
	contents := read(t, "../../../docs/README.md")
	for _, path := range append(glob(t, "../../../docs/*.md"), glob(t, "../../../docs/*.json")...) {
		if name := filepath.Base(path); name != "README.md" {
			assert.Equal(t, 1, strings.Count(contents, "("+name+")"), name)
		}
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	return paths
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// anchors are the names that GitHub gives a page's headings.
func anchors(page string) (all []string) {
	drop := regexp.MustCompile(`[^\w\- ]`)
	for _, heading := range headings.FindAllStringSubmatch(page, -1) {
		name := drop.ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, strings.ReplaceAll(name, " ", "-"))
	}
	return all
}
