package cache_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

var update = flag.Bool("update", false, "write the scripts' results into testdata")

// TestScripts runs testdata/*.txt. A script is a list of steps with an empty line
// between them: commands, a line "----", and what they said. The device has 128
// MiB. The commands:
//
//	alloc NAME SIZE    free NAME    empty    reset-peak    close
//	stats    segments    other SIZE    fail alloc|free
func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			got := runScript(t, string(text))
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
				return
			}
			assert.Equal(t, string(text), got)
		})
	}
}

// runScript returns the script with the results as they are.
func runScript(t *testing.T, text string) string {
	dev := open(t, sim.Config{Memory: 128 * alloc.MiB, Overhead: -1})
	s := &script{dev: dev, cache: cachetest.NewCache(t, dev, cache.Config{}), names: make(map[string]alloc.Ptr)}
	var out bytes.Buffer
	for i, step := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			fmt.Fprintln(&out)
		}
		commands, _, _ := strings.Cut(step, "\n----")
		fmt.Fprintf(&out, "%s\n----\n", commands)
		for command := range strings.Lines(commands) {
			if fields := strings.Fields(command); fields[0] != "#" {
				s.run(t, &out, fields)
				cachetest.Invariants(t, s.cache)
			}
		}
	}
	return out.String()
}

type script struct {
	dev   cachetest.Device
	cache *cache.Cache
	names map[string]alloc.Ptr
}

func (s *script) run(t *testing.T, out io.Writer, fields []string) {
	size := func(i int) (n alloc.Bytes) {
		require.NoError(t, n.Set(fields[i]))
		return n
	}
	var err error
	switch fields[0] {
	case "alloc":
		var p alloc.Ptr
		var allocated alloc.Bytes
		if p, allocated, err = s.cache.AllocOn(size(2), 0); err == nil {
			s.names[fields[1]] = p
			fmt.Fprintf(out, "%s: %v at %v\n", fields[1], allocated, p)
		}
	case "free":
		err = s.cache.Free(s.names[fields[1]])
	case "empty":
		var given alloc.Bytes
		given, err = s.cache.Trim()
		fmt.Fprintf(out, "%v given back\n", given)
	case "reset-peak":
		s.cache.ResetPeak()
	case "close":
		err = s.cache.Close()
	case "stats":
		writeStats(out, s.cache.Stats())
	case "segments":
		writeSegments(out, s.cache)
	case "other":
		s.dev.SetOther(size(1))
	case "fail":
		s.dev.Inject(sim.Fault{Call: map[string]string{"alloc": "Alloc", "free": "Free"}[fields[1]]})
	default:
		require.Fail(t, "unknown command", fields)
	}
	if err != nil {
		fmt.Fprintln(out, "error:", err)
	}
}

func writeStats(out io.Writer, s alloc.Stats) {
	for _, row := range []struct {
		name string
		alloc.Usage
	}{{"requested", s.Requested}, {"allocated", s.Allocated}, {"inactive", s.Inactive}, {"reserved", s.Reserved}} {
		b, n := row.Bytes, row.Count
		fmt.Fprintf(out, "%-9s current %v in %d, peak %v in %d, total %v in %d\n",
			row.name, b.Current, n.Current, b.Peak, n.Peak, b.Total, n.Total)
	}
	scattered := 0.0 // the part of the inactive bytes that is not one block
	if inactive := s.Inactive.Bytes.Current; inactive > 0 {
		scattered = 1 - float64(s.LargestInactive)/float64(inactive)
	}
	fmt.Fprintf(out, "retries %d, OOMs %d, largest inactive %v, fragmentation internal %v, external %.3f\n",
		s.Retries, s.OOMs, s.LargestInactive, s.Allocated.Bytes.Current-s.Requested.Bytes.Current, scattered)
}

func writeSegments(out io.Writer, c *cache.Cache) {
	for segment := range c.Segments() {
		fmt.Fprintf(out, "%v %v %v\n", segment.Ptr, segment.Pool, segment.Size)
		for _, b := range segment.Blocks {
			fmt.Fprintf(out, "  +%#x %v %v (requested %v)\n", uint64(b.Ptr-segment.Ptr), b.State, b.Size, b.Requested)
		}
	}
}
