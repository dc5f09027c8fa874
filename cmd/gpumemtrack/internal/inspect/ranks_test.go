package inspect

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// writeRanks writes the snapshots of so many ranks, each of 300 call sites.
func writeRanks(t testing.TB, dir string, ranks int) {
	stacks := make(stackList, 300)
	tables := snapshot.Tables{Stacks: stacks, Sections: []string{""}}
	for i := range stacks {
		for depth := range 12 {
			stacks[i] = append(stacks[i], snapshot.Frame{Function: fmt.Sprintf("main.layer%d", i), File: "/src/train.go", Line: 10*i + depth + 1})
		}
		tables.Sites = append(tables.Sites, snapshot.SiteEntry{
			Place:  snapshot.Place{Stack: snapshot.StackID(i)},
			Tensor: &snapshot.Tensor{Kind: snapshot.Activation, DType: alloc.Float32, Shape: alloc.Shape{256, i + 1}, Each: alloc.Bytes(1024 * (i + 1))},
			Live:   int64(i + 1), Peak: int64(i + 1), Total: int64(i + 1),
		})
	}
	for rank := range ranks {
		s := snapshot.New(snapshot.Head{Device: "GPU", Origin: snapshot.Origin{PID: rank + 1, Rank: &rank, WorldSize: ranks}}, tables)
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%04d.json", rank)))
		require.NoError(t, err)
		require.NoError(t, s.WriteJSON(f))
		require.NoError(t, f.Close())
	}
}

// stackList are stacks by number.
type stackList []snapshot.Stack

func (l stackList) Stack(id snapshot.StackID) snapshot.Stack { return l[id] }
func (l stackList) Site(id snapshot.StackID) snapshot.Frame  { return l[id][0] }
func (l stackList) Path(id snapshot.StackID) snapshot.Path   { return l[id].Path() }

// BenchmarkDiffOfRanks compares two runs of a thousand ranks: the goal is 5 s.
func BenchmarkDiffOfRanks(b *testing.B) {
	before, after := b.TempDir(), b.TempDir()
	writeRanks(b, before, 1000)
	writeRanks(b, after, 1000)
	for b.Loop() {
		if code := run([]string{"diff", before, after}, strings.NewReader(""), io.Discard, io.Discard); code != 0 {
			b.Fatal(code)
		}
	}
}

// BenchmarkRanks shows and explains a run of a thousand ranks.
func BenchmarkRanks(b *testing.B) {
	dir := b.TempDir()
	writeRanks(b, dir, 1000)
	for _, command := range []string{"show", "explain"} {
		b.Run(command, func(b *testing.B) {
			for b.Loop() {
				if code := run([]string{command, dir}, strings.NewReader(""), io.Discard, io.Discard); code != 0 {
					b.Fatal(code)
				}
			}
		})
	}
}
