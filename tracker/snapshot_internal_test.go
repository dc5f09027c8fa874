package tracker

import (
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
)

// TestASnapshotBesideWhatChangesARecord: each change of a buffer's record announces itself to a snapshot that is being taken,
// which shows the record as it was at its instant.
func TestASnapshotBesideWhatChangesARecord(t *testing.T) {
	device, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr, err := New(Config{Device: device, Report: io.Discard, NoCache: true})
	require.NoError(t, err)
	defer tr.Close()
	for name, change := range map[string]func(b *Buffer){
		"becomes unreachable": (*Buffer).unreachable,
		"is freed":            func(b *Buffer) { require.NoError(t, b.Free()) },
		"has another kind":    func(b *Buffer) { require.NoError(t, b.SetKind(Gradient)) },
		"has a label":         func(b *Buffer) { b.SetLabel("new") },
	} {
		b, err := tr.Alloc(alloc.Shape{8}, alloc.Float32, Parameter)
		require.NoError(t, err)
		b.SetLabel("old")
		tr.mu.Lock()
		want := *b.live()
		view := tr.ledger.Records.View()
		tr.mu.Unlock()
		change(b)
		var got ledger.Record
		view.Read(sync.Locker(tr.mu), func(first slab.ID, all []ledger.Record) {
			if i := int(b.record) - int(first); i >= 0 && i < len(all) {
				got = all[i]
			}
		})
		assert.Equal(t, want, got, "a buffer that %s", name)
	}
}
