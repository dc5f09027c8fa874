package snapshot

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// TestLinesOfAChangeAreInOrder: those in the direction of the whole change come first, larger ones before smaller
// ones, and equal ones by file and line, whichever was added first.
func TestLinesOfAChangeAreInOrder(t *testing.T) {
	at := func(line int, count int64, bytes alloc.Bytes) mem.CallSiteTally {
		return mem.CallSiteTally{Frame: mem.Frame{Function: "main.f", File: "a.go", Line: line}, Tally: mem.Tally{Count: count, Bytes: bytes}}
	}
	grew := []mem.CallSiteTally{
		at(9, 3, 90), at(8, 3, 40), at(7, 2, 40), at(2, 1, 40), at(5, 1, 40), at(6, 1, 40), at(10, 1, 3),
		at(3, -1, -50), at(1, -2, -20), at(4, -1, -20), at(11, -1, -20),
	}
	shrank := []mem.CallSiteTally{
		at(1, -9, -900), at(7, -8, -40), at(2, -1, -40), at(5, -1, -40), at(8, -1, -3),
		at(3, 1, 50), at(6, 2, 20), at(4, 1, 20), at(9, 1, 20),
	}
	for name, want := range map[string][]mem.CallSiteTally{"grew": grew, "shrank": shrank, "few lines": grew[2:6]} {
		for range 20 {
			var b DeltaBuilder
			for _, i := range rand.Perm(len(want)) {
				b.Add(Group{Kind: "Activation", DType: alloc.Uint8, Shape: alloc.Shape{1}}, want[i].Frame, want[i].Tally)
			}
			d := b.Delta()
			assert.Len(t, d, 1, name)
			for _, c := range d {
				assert.Equal(t, fmt.Sprint(want), fmt.Sprint(c.CallSites), name)
			}
		}
	}
}

// Changes that differ only in their memory come in its order, whatever was added first.
func TestChangesOfEachMemoryAreInOrder(t *testing.T) {
	for range 20 {
		var b DeltaBuilder
		for _, i := range rand.Perm(int(alloc.ImportedMemory)) {
			memory := alloc.DeviceMemory + alloc.Memory(i)
			b.Add(Group{Kind: "Activation", DType: alloc.Uint8, Shape: alloc.Shape{1}, Memory: memory}, mem.Frame{Line: 1}, mem.Tally{Count: 1, Bytes: 1})
		}
		next := alloc.DeviceMemory
		for _, c := range b.Delta() {
			assert.Equal(t, next, c.Memory)
			next++
		}
		assert.Equal(t, alloc.ImportedMemory+1, next)
	}
}
