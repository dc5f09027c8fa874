package leakprograms_test

import (
	"flag"
	"fmt"
	"html"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/leakprograms"
)

var update = flag.Bool("update", false, "draw the picture of docs/leaks.md anew")

// olds notes at each look how many buffers have lived so long.
type olds struct {
	now    func() time.Duration
	age    time.Duration
	live   map[int]time.Duration // when each was allocated
	n      int
	levels []int
}

func (o *olds) Alloc(string, string) func() {
	id := o.n
	o.n++
	o.live[id] = o.now()
	return func() { delete(o.live, id) }
}

func (o *olds) Look() (forgotten, growing []string) {
	n := 0
	for _, since := range o.live {
		if since <= o.now()-o.age {
			n++
		}
	}
	o.levels = append(o.levels, n)
	return nil, nil
}

// TestPicture draws the picture of docs/leaks.md: what grows and what does not.
func TestPicture(t *testing.T) {
	const width, height, gap = 240, 130, 24
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", 3*width+2*gap, height+40)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	for i, panel := range []struct {
		title, program string
		hours          float64
	}{
		{"a leak", "10 requests a second, 1 in 400 forgotten on an error path", 2},
		{"a cache that fills", "an LRU cache of 5,000, always new keys, full after 2.8 h", 12},
		{"sessions", "sessions of 10 s to 3 h", 12},
	} {
		levels := levelsOf(t, panel.program, panel.hours)
		most := 1
		for _, n := range levels {
			most = max(most, n)
		}
		x := i * (width + gap)
		fmt.Fprintf(&b, `<g transform="translate(%d,20)"><path d="M0 0V%dH%d" fill="none" stroke="#999"/>`, x, height, width)
		fmt.Fprintf(&b, `<text x="6" y="-6" fill="#333">%s: up to %d old buffers</text><text x="%d" y="%d" text-anchor="end" fill="#666">%.0f h</text>`, html.EscapeString(panel.title), most, width, height+15, panel.hours)
		b.WriteString(`<polyline fill="none" stroke="#2563eb" stroke-width="2" points="`)
		for k, n := range levels {
			fmt.Fprintf(&b, "%d,%d ", k*width/(len(levels)-1), height-n*(height-6)/most)
		}
		b.WriteString("\"/></g>\n")
	}
	b.WriteString("</svg>\n")
	const file = "../../../docs/img/leaks.svg"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
		return
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, b.String(), string(text), "-update draws it anew")
}

// levelsOf runs a program and returns how many buffers older than a sixteenth of the time it had at 120 looks.
func levelsOf(t *testing.T, name string, hours float64) []int {
	t.Helper()
	for i, p := range leakprograms.All {
		if p.Name == name {
			w := leakprograms.New(1, i)
			all := time.Duration(hours * float64(time.Hour))
			o := &olds{now: w.Now, live: make(map[int]time.Duration), age: all / 16}
			w.Run(o, p, hours, all/120)
			return o.levels
		}
	}
	require.Fail(t, "no such program", name)
	return nil
}
