//go:build cuda && (amd64 || arm64)

package attach

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestGorgonia: a program that uses gorgonia.org/cu. scripts/cuda-headers has the settings to
// build it.
func TestGorgonia(t *testing.T) {
	path := buildGo(t, "gorgonia", "1", "-tags=cuda")
	for name, watcher := range ways {
		t.Run(name, func(t *testing.T) {
			w := watcher(t)
			s := followed(t, w, start(t, w, path), 5)
			a := largest(t, s)
			assert.Contains(t, names(a.Stack), "main.loadWeights <- main.main")
			assert.Equal(t, "main.loadWeights", a.CallSite.Function)
		})
	}
}
