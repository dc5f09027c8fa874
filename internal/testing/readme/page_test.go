package readme_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// page is a Markdown file, by lines.
type page struct {
	path  string
	lines []string
}

// pages returns the README and the pages of docs.
func pages(t *testing.T) (all []page) {
	t.Helper()
	paths, err := filepath.Glob("../../../docs/*.md")
	require.NoError(t, err)
	for _, path := range append(paths, "../../../README.md") {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		all = append(all, page{path, strings.Split(string(text), "\n")})
	}
	return all
}

// block is what a page has between ```language options and ```.
type block struct {
	options     []string // the words after the language
	first, last int      // its lines in the page: from first to before last
}

func (p page) blocks(language string) (all []block) {
	for i := 0; i < len(p.lines); i++ {
		info, ok := strings.CutPrefix(p.lines[i], "```")
		if !ok {
			continue
		}
		n := slices.Index(p.lines[i+1:], "```")
		if words := strings.Fields(info); len(words) > 0 && words[0] == language {
			all = append(all, block{words[1:], i + 1, i + 1 + n})
		}
		i += n + 1
	}
	return all
}

// command is a line of a console block that begins with "$ ", and the output below it.
type command struct {
	block
	line        string
	first, last int // the lines of its output
}

func (p page) commands() (all []command) {
	for _, b := range p.blocks("console") {
		if slices.Contains(b.options, "elsewhere") {
			continue
		}
		for i := b.first; i < b.last; i++ {
			if line, ok := strings.CutPrefix(p.lines[i], "$ "); ok {
				all = append(all, command{block: b, line: line, first: i + 1, last: i + 1})
			} else {
				all[len(all)-1].last = i + 1
			}
		}
	}
	return all
}

// masks take away what differs between two runs.
var masks = []struct {
	*regexp.Regexp
	by string
}{
	{regexp.MustCompile(`\d\d-[A-Z][a-z]{2}-\d\d-\d\d[:-]\d\d[:-]\d\d(\.\d{3})?`), "NOW"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`), "NOW"},
	{regexp.MustCompile(`(\w+\[)\d+(\] on )[\w.-]+`), "${1}PID${2}HOST"},
	{regexp.MustCompile(`( in (rank \d+ )?on )\S+`), "${1}HOST"},
	{regexp.MustCompile(`(rank \d+ on )[\w.-]+`), "${1}HOST"},
	{regexp.MustCompile(`\t/\S*/`), "\t"}, // the folder of a call stack's file
	{regexp.MustCompile(`\b[0-9.]+( ?(ns|µs|ms|s)|m)\b`), "TIME"},
	{regexp.MustCompile(` +|─+`), " "}, // the width of a column follows its widest cell
}

// figures are what differs too where a block's option is "varies".
var figures = regexp.MustCompile(`\d[\d.,]*(e\+\d+)?( [KMGT]?i?B\b)?`)

func masked(text string, varies bool) string {
	for _, m := range masks {
		text = m.ReplaceAllString(text, m.by)
	}
	if varies {
		text = figures.ReplaceAllString(text, "N")
	}
	return strings.TrimSpace(text)
}

// shows reports whether the block's text is what a command printed.
func (b block) shows(shown, printed string) bool {
	if slices.Contains(b.options, "columns") {
		return showsColumns(shown, printed)
	}
	return showsLines(shown, printed, slices.Contains(b.options, "varies"))
}

// showsColumns reports whether the cells of each line that a page shows are, in this order, in
// one line of what a command printed. Two spaces separate cells.
func showsColumns(shown, printed string) bool {
	for line := range strings.Lines(masked(strings.ReplaceAll(shown, "  ", "\t"), false)) {
		var pattern []string
		for cell := range strings.SplitSeq(strings.TrimSpace(line), "\t") {
			if cell = strings.TrimSpace(cell); cell != "" {
				pattern = append(pattern, regexp.QuoteMeta(cell))
			}
		}
		if !regexp.MustCompile(`(?m)^ ?` + strings.Join(pattern, `.* `) + `$`).MatchString(masked(printed, false)) {
			return false
		}
	}
	return true
}

// showsLines compares lines. A line "..." of the page stands for any number of lines.
func showsLines(shown, printed string, varies bool) bool {
	chunks := regexp.MustCompile(`(?m)^\.\.\.$`).Split(shown, -1)
	rest := masked(printed, varies)
	for i, chunk := range chunks {
		chunk = masked(chunk, varies)
		at := strings.Index(rest, chunk)
		switch {
		case at < 0, i == 0 && at > 0, i == len(chunks)-1 && chunk != "" && !strings.HasSuffix(rest, chunk):
			return false
		case len(chunks) == 1:
			return rest == chunk
		}
		rest = rest[at+len(chunk):]
	}
	return true
}
