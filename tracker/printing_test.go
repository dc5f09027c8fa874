package tracker_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// TestValuesPrint: what a program holds prints well.
func TestValuesPrint(t *testing.T) {
	tr, _ := open(t, tracker.Config{Clock: clock()})
	b := take(t, tr, tracker.Parameter, 1024, 1024)
	section := tr.Section("step")
	require.NoError(t, take(t, tr, tracker.Activation, 1<<20).Free())
	m := tr.Track()
	assert.Equal(t, "Simulated GPU [0]: 1 buffer, 4.0 MiB live, peak 8.0 MiB", fmt.Sprint(tr))
	assert.Equal(t, "cache of Simulated GPU 0: 4.0 MiB of 20.0 MiB allocated", fmt.Sprint(tr.Device()))
	assert.Regexp(t, `^RSS: .*GPU: .* step \(Consumed/Peaked/Used Total\)$`, fmt.Sprint(section))
	assert.Regexp(t, `(?s)^mark 1 at printing_test\.go:\d+ tracker_test\.TestValuesPrint: 1 buffer, 4\.0 MiB live\n.*Parameter`, fmt.Sprint(m))
	assert.Regexp(t, `^\d+ events$`, fmt.Sprint(tr.History()))
	section.End()
	assert.Contains(t, fmt.Sprint(tr.Profile()), "step")
	require.NoError(t, b.Free())
	require.NoError(t, tr.Close())
	assert.Equal(t, "Simulated GPU [0]: closed", fmt.Sprint(tr))
	assert.Equal(t, "<nil>", fmt.Sprint((*tracker.MemTracker)(nil)))
}

// TestPrintingBesideUse prints values, and marshals them, while others use them. None shows what is inside.
func TestPrintingBesideUse(t *testing.T) {
	tr, _ := open(t, tracker.Config{MaxEvents: 256, MaxMarks: 8})
	b := take(t, tr, tracker.Parameter, 8)
	section := tr.Section("all")
	inside := regexp.MustCompile(`0xc0[0-9a-f]{8}|^&?\{`)
	var done atomic.Bool
	var using sync.WaitGroup
	for worker := range 3 {
		using.Go(func() {
			for i := 0; !done.Load(); i++ {
				s := section.Section("part")
				buf, err := tr.Alloc(alloc.Shape{1 + i%1000, 1 + worker}, alloc.Float32, tracker.Activation)
				if assert.NoError(t, err) {
					buf.SetLabel("x")
					assert.NoError(t, buf.Free())
				}
				s.End()
				if i%16 == 0 {
					tr.Track()
					b.SetKind(tracker.Parameter)
				}
			}
		})
	}
	for range 20 {
		for _, v := range []any{tr, tr.Device(), section, b, tr.Snapshot(), tr.History(), tr.Profile(), tr.Track(), tr.Marks(), tr.Explain(), section.Data()} {
			for _, verb := range []string{"%v", "%+v", "%s"} {
				assert.NotRegexp(t, inside, fmt.Sprintf(verb, v), "%T", v)
			}
			_, err := json.Marshal(v)
			assert.NoError(t, err, "%T", v)
		}
	}
	done.Store(true)
	using.Wait()
	section.End()
}

// TestNamesInJSON are those of the schemas: in lower case, with the unit of an amount.
func TestNamesInJSON(t *testing.T) {
	tr, _ := open(t, tracker.Config{Sections: tracker.SectionConfig{HostDetail: true}})
	section := tr.Section("step")
	take(t, tr, tracker.Parameter, 1024)
	require.NoError(t, take(t, tr, tracker.Activation, 1<<20).Free())
	section.End()
	tr.Track()
	values := []any{tr.Suspects(), tr.Growth(), tr.Leaks(), tr.Marks(), tr.Profile(), section.Data(), tr.Explain()}
	for e := range tr.History().Events() {
		values = append(values, e)
	}
	for _, v := range values {
		text, err := json.Marshal(v)
		require.NoError(t, err, "%T", v)
		assert.Regexp(t, `^(\[|\{".+\}$)`, string(text), "%T", v)
		for _, key := range regexp.MustCompile(`"([^"]*)":`).FindAllSubmatch(text, -1) {
			assert.Regexp(t, `^[a-z][a-z0-9_]*$`, string(key[1]), "%T", v)
		}
	}
}
