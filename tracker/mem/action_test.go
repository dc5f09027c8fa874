package mem_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

func TestActionsAreReadByTheirNames(t *testing.T) {
	for name, want := range map[string]mem.Action{
		"alloc": mem.Allocated, "free": mem.Freed, "unreachable": mem.Unreachable,
		"lost": mem.Unreachable, // in files from before the first release
	} {
		var got mem.Action
		require.NoError(t, got.UnmarshalText([]byte(name)), name)
		assert.Equal(t, want, got, name)
	}
	var a mem.Action
	assert.ErrorContains(t, a.UnmarshalText([]byte("Alloc")), `parse action "Alloc"`)
	assert.Zero(t, a, "an error changes nothing")
}
