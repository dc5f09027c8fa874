package gpuemu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheLibrariesBuild where there is a compiler. Other tests are skipped without the libraries, and so would hide that they do not.
func TestTheLibrariesBuild(t *testing.T) {
	if _, err := compiler(); err != nil {
		t.Skip(err)
	}
	_, err := Build()
	require.NoError(t, err)
}
